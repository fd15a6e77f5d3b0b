"""`octavo serve --step-log FILE`: one line of JSON per step, with what it computed and how long.

Made for `octavo simulate fit`, which turns it into a step-time model of this machine. The first
line of a start says what serves (`octavo_step_log` is the format's version); a file that exists is
continued. Written by the engine's thread, some ten microseconds a step. A log that cannot be
written any more is given up with a warning; serving goes on.
"""

import json
import logging
import weakref
from pathlib import Path
from typing import Any, TextIO

from engine.config import EngineError, EngineInfo
from scheduler import StepPlan
from scheduler.simulation.step_time import work_of

logger = logging.getLogger(__name__)

VERSION = 1
# What of the engine bears on a step's time.
_INFO = (
    *("model", "dtype", "device", "threads", "attention", "max_model_len", "page_size"),
    *("num_pages", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching"),
)


class StepLog:
    """Times are seconds of the engine's clock. Raises `EngineError` if it cannot be opened."""

    def __init__(self, path: Path, info: EngineInfo) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._start: float | None = None  # of the first step
        # When the step before ended, if there was more to do: the gap is then overhead.
        self._busy_since: float | None = None
        try:
            self._file = path.open("a", buffering=1)
            weakref.finalize(self, self._file.close)  # nobody shuts an engine down, it goes
        except OSError as error:
            raise EngineError(f"the step log {path} cannot be written: {error.strerror}") from error
        self._write({"octavo_step_log": VERSION, **{name: getattr(info, name) for name in _INFO}})

    def note(self, plan: StepPlan, begin: float, end: float, *, more: bool) -> None:
        """A step has been committed. `more`: there is work left, so the next follows at once."""
        if self._file is None or not plan.chunks:
            self._busy_since = None
            return
        if self._start is None:
            self._start = begin
        work = work_of(plan.chunks)
        decode = sum(chunk.num_tokens == 1 for chunk in plan.chunks)
        gap = None if self._busy_since is None else round((begin - self._busy_since) * 1e3, 3)
        self._busy_since = end if more else None
        self._write(
            {
                "t": round(begin - self._start, 6),
                "ms": round((end - begin) * 1e3, 3),
                "gap_ms": gap,
                "prefill_tokens": work.tokens - decode,
                "decode_tokens": decode,
                "sequences": work.sequences,
                "samples": work.samples,
                "context_tokens": work.context,
                "mixed_context_tokens": work.mixed_context,
                "pairs": work.pairs,
            }
        )

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError as error:
            logger.warning("the step log %s ends here: %s", self._path, error.strerror)
            self._file = None
