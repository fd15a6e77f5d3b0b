"""An engine for a process of its own that needs no model: real scheduler, scripted tokens, faults.

The first token of a prompt says what becomes of it; see `ScriptedRunner`. A file named `broken` in
the folder makes loading fail. Each life leaves a line in `lives`.
"""

import os
import signal
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from engine_infos import engine_info

from engine.config import EngineError
from engine.engine import Engine
from engine.loading import Reporter
from engine.main_loop import EngineBuilder
from engine.protocols import StepRunner
from kv_cache import CacheManager
from scheduler import Chunk, ChunkResult, Sample, Scheduler, SchedulerConfig, StepPlan, StepResult

RAISE, KILL, HANG, STALL, SLEEP, FAIL = range(300, 306)
SLEEP_SECONDS = 3.0
NUM_PAGES, PAGE_SIZE = 64, 4
MAX_NUM_SEQS, MAX_TOKENS = 8, 64  # seats, and tokens of one step


def scripted_builder(
    folder: Path, *, load_seconds: float = 0.0, model_dir: Path | None = None
) -> EngineBuilder:
    """`model_dir` is where the tokenizer lies, for those who need one."""
    return partial(_build, folder, load_seconds, model_dir or folder)


def scripted_answer(prompt: Iterable[int], max_tokens: int) -> list[int]:
    """What an undisturbed engine says."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(sum(tokens) % 290)
    return tokens[-max_tokens:]


class ScriptedRunner:
    """Once a request has two tokens of its answer: RAISE ends the step with an exception, KILL the
    process, HANG never returns, STALL computes nothing, FAIL fails that request. SLEEP takes its
    time over the first step."""

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult(tuple(self._compute(chunk) for chunk in plan.chunks))

    def _compute(self, chunk: Chunk) -> ChunkResult:
        tokens = chunk.sequence.tokens
        if tokens[0] == SLEEP and chunk.sequence.num_output == 0:
            time.sleep(SLEEP_SECONDS)
        if chunk.sequence.num_output >= 2:
            match tokens[0]:
                case 300:
                    raise RuntimeError("scripted")
                case 301:
                    os.kill(os.getpid(), signal.SIGKILL)
                case 302:
                    time.sleep(3600)
                case 303:
                    return ChunkResult(0)
                case 305:
                    return ChunkResult(0, error="scripted")
        sample = Sample(sum(tokens) % 290)
        return ChunkResult(chunk.num_tokens, tuple(sample for _ in chunk.samples))


def scripted_engine(runner: StepRunner, model_dir: Path) -> Engine:
    """The real scheduler and cache over any runner."""
    info = engine_info(
        model="scripted",
        model_dir=model_dir,
        attention="scripted",
        max_model_len=NUM_PAGES * PAGE_SIZE,
        page_size=PAGE_SIZE,
        num_pages=NUM_PAGES,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_TOKENS,
    )
    config = SchedulerConfig(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_TOKENS)
    return Engine(Scheduler(config, CacheManager(NUM_PAGES, PAGE_SIZE)), runner, info)


def _build(folder: Path, load_seconds: float, model_dir: Path, report: Reporter) -> Engine:
    with (folder / "lives").open("a") as lives:
        lives.write(f"{os.getpid()}\n")
    time.sleep(load_seconds)
    if (folder / "broken").exists():
        raise EngineError("the model is broken")
    return scripted_engine(ScriptedRunner(), model_dir)
