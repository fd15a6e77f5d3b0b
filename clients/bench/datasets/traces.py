"""Replaying public traces: when requests came, how long they were, and what they shared.

Mooncake (JSONL): `timestamp` in ms, `input_length`, `output_length`, `hash_ids`. An id names a
block of 512 tokens together with all that is before it; prompts made here share exactly the blocks
whose ids they share. A `block_size` in the line stands for another size.
Azure LLM inference (CSV): TIMESTAMP, ContextTokens, GeneratedTokens. BurstGPT (CSV): Timestamp in
seconds, "Request tokens", "Response tokens"; rows without an answer are failures and left out.

Lengths may be scaled to a small model's context: `--length-scale 1/32` makes blocks of 512 tokens
blocks of 16, so that the sharing stays the same.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from clients.bench.arrivals import spread_ticks
from clients.bench.datasets.source import DatasetOptions, Line, read_csv, read_json_lines
from clients.bench.plan import BadInput, Session, Turn, Workload
from clients.bench.prompts import Piece, PromptMaker

MOONCAKE_BLOCK = 512
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_SECONDS = 1e11  # three thousand years: beyond, a step's time would vanish beside it
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BURSTGPT = ("Timestamp", "Request tokens", "Response tokens")


@dataclass(frozen=True, slots=True)
class _Row:
    """`time` in seconds on the trace's clock; lengths in tokens before scaling; `blocks` are ids of
    `block_size` tokens each."""

    time: float
    input_len: int
    output_len: int
    blocks: tuple[int, ...] = ()
    block_size: int = 0


def mooncake(options: DatasetOptions, maker: PromptMaker) -> Workload:
    """Raises `BadInput`."""
    rows = _in_order(read_json_lines(options.the_path()), _mooncake_row)
    return _replay("mooncake", rows, options, maker)


def azure(options: DatasetOptions, maker: PromptMaker) -> Workload:
    """Raises `BadInput`."""
    rows = _in_order(read_csv(options.the_path(), _AZURE), _azure_row)
    return _replay("azure", rows, options, maker)


def burstgpt(options: DatasetOptions, maker: PromptMaker) -> Workload:
    """Raises `BadInput`."""
    rows = _in_order(read_csv(options.the_path(), _BURSTGPT), _burstgpt_row)
    return _replay("burstgpt", rows, options, maker)


def _in_order(lines: Iterator[Line], make: Callable[[Line], _Row]) -> Iterator[_Row]:
    """A trace is a record of what came when: a time that goes back means a damaged file."""
    last = None
    for line in lines:
        row = make(line)
        if row.time > MAX_SECONDS:
            raise line.error(f"its time must be at most {MAX_SECONDS:g} s, got {row.time:g} s")
        if last is not None and row.time < last:
            raise line.error(f"its time is {last - row.time:g} s before that of the line above")
        last = row.time
        yield row


def _mooncake_row(line: Line) -> _Row:
    length = line.whole("input_length", least=1)
    size = line.whole("block_size", least=1) if "block_size" in line.data else MOONCAKE_BLOCK
    ids = line.data.get("hash_ids")
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise line.error("hash_ids must be a list of whole numbers")
    if len(ids) != -(-length // size):
        raise line.error(
            f"{len(ids)} hash_ids for {length} tokens; blocks of {size} make {-(-length // size)}"
        )
    output = line.whole("output_length")
    return _Row(line.number("timestamp") / 1000, length, output, tuple(ids), size)


def _azure_row(line: Line) -> _Row:
    text = str(line.data["TIMESTAMP"])
    try:
        # Digits of a second beyond the sixth are passed over. What names no zone is UTC: in local
        # time an hour would be missing or come twice.
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise line.error(f"TIMESTAMP {text!r} is no time") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = (moment - _EPOCH).total_seconds()
    return _Row(seconds, line.whole("ContextTokens"), line.whole("GeneratedTokens"))


def _burstgpt_row(line: Line) -> _Row:
    input_len, output_len = line.whole("Request tokens"), line.whole("Response tokens")
    return _Row(line.number("Timestamp"), input_len, output_len)


def _replay(
    name: str, rows: Iterator[_Row], options: DatasetOptions, maker: PromptMaker
) -> Workload:
    read = list(islice(rows, options.limit))
    taken = [row for row in read if row.input_len > 0 and row.output_len > 0]
    notes = []
    if len(taken) < len(read):
        notes.append(f"{len(read) - len(taken)} rows without prompt or answer left out")
    scale = options.length_scale
    if options.max_input_len is not None:
        fitting = [row for row in taken if row.input_len * scale <= options.max_input_len]
        if len(fitting) < len(taken):
            notes.append(
                f"{len(taken) - len(fitting)} prompts longer than {options.max_input_len} left out"
            )
        taken = fitting
    if not taken:
        raise BadInput(f"{options.path} holds no requests to replay")
    times, spread = _times(taken, options)
    if spread:
        notes.append("requests of one tick of the trace's clock are spread over it")
    content = _shared_blocks if taken[0].blocks else _own_text

    def sessions() -> Iterator[Session]:
        for index, (row, time) in enumerate(zip(taken, times, strict=True)):
            length = max(round(row.input_len * scale), 1)
            output = max(round(row.output_len * scale), 1)
            make = partial(maker.prompt, content(row, index, length, scale))
            yield Session((Turn(make, length, output),), arrival=time)

    return Workload(name, sessions(), len(taken), fixed_output=True, notes=tuple(notes))


def _times(rows: list[_Row], options: DatasetOptions) -> tuple[list[float], bool]:
    """Seconds since the first request, and whether coarse ticks were spread."""
    times = [row.time - rows[0].time for row in rows]
    spread = options.spread_ticks and len(set(times)) < len(times)
    if spread:
        times = spread_ticks(times)
    return [time / options.speedup for time in times], spread


_Content = Callable[[_Row, int, int, float], list[Piece]]


def _own_text(row: _Row, index: int, length: int, scale: float) -> list[Piece]:
    return [Piece(f"trace {index}", length, opening=index)]


def _shared_blocks(row: _Row, index: int, length: int, scale: float) -> list[Piece]:
    """One piece a block; the last one takes what is left. An id at the front also names the
    opening: that block begins alike wherever it stands."""
    size = max(round(row.block_size * scale), 1)
    pieces = []
    for place, block in enumerate(row.blocks):
        left = length - place * size
        if left <= 0:
            break
        last = place == len(row.blocks) - 1
        opening = block if place == 0 else None
        pieces.append(Piece(f"block {block}", left if last else min(size, left), opening))
    return pieces
