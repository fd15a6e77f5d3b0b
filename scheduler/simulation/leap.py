"""Many equal steps at once: what `Scheduler` would do, step by step, done sequence by sequence.

While every running sequence decodes and none ends, and while the waiting ones, if any, were tried
and not let in, each next plan can only be the last one again: one token for each of the same
sequences. Nothing is released meanwhile, so nobody who waits gets in, and as long as there are
pages nobody is preempted. A leap takes such a run of steps together, up to and including the one in
which the first answer ends. Each sequence does its `reserve` and `commit` once over many tokens.
Pages are handed out in another order, which renames them and changes nothing else: as many are
taken, so the same cached ones go.

This is the one place beside `Scheduler` that appends to a sequence's tokens, between two plans. Its
counters of steps and generated tokens are not kept up by it; `Recorder` has those. A test runs
random loads with and without leaps and compares every figure.
"""

from bisect import bisect_right
from collections.abc import Sequence as SequenceOf

from kv_cache import CacheManager
from scheduler.request import Sequence
from scheduler.simulation.step_time import StepTimeModel

# Longer leaps would save no more, and one that is cut short has computed its times in vain.
MAX_STEPS = 64


class Leap:
    """A run of steps under way. `ends` are the times at which they end."""

    __slots__ = ("ends", "sequences", "start")

    def __init__(self, sequences: SequenceOf[Sequence], start: float, ends: list[float]) -> None:
        self.sequences = sequences
        self.start = start
        self.ends = ends

    @property
    def end(self) -> float:
        return self.ends[-1]

    def cut(self, now: float) -> None:
        """Let it end with the step that is under way at `now`."""
        del self.ends[bisect_right(self.ends, now) + 1 :]

    def land(self, cache: CacheManager) -> list[Sequence]:
        """Bring sequences and cache to where the last step leaves them. Returns the sequences that
        have then generated all their tokens: the caller must end them."""
        steps = len(self.ends)
        done = []
        for sequence in self.sequences:
            table = sequence.table
            assert table is not None
            # A sequence in decode has sampled before, and generates one token again and again.
            sequence.tokens += [sequence.tokens[-1]] * steps
            copies = cache.reserve(table, steps)
            assert copies is not None, "the leap was planned for more pages than there are"
            cache.commit(table, sequence.tokens, steps)
            if sequence.num_output >= sequence.request.max_tokens:
                done.append(sequence)
        return done


def plan_leap(
    sequences: SequenceOf[Sequence],
    cache: CacheManager,
    step_time: StepTimeModel,
    start: float,
) -> Leap | None:
    """A leap of as many steps as there surely are, None if there may not be pages for one."""
    steps = min(each.request.max_tokens - each.num_output for each in sequences)
    steps = min(steps, MAX_STEPS)
    # At most one page more than what the tokens fill, for each; halving is exact enough.
    while steps and len(sequences) * (steps // cache.page_size + 1) > cache.num_available:
        steps //= 2
    if not steps:
        return None
    count = len(sequences)
    base, slope = step_time.decode_line(count, count, count)
    context = sum(each.num_computed for each in sequences)
    ends = []
    now = start
    for _ in range(steps):
        context += count
        now += base + slope * context
        ends.append(now)
    return Leap(sequences, start, ends)
