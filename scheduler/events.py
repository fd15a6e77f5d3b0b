"""What the outside is told of a sequence: its `TokenEvent`s, built from what it is at that moment.

Pure functions, called by `Scheduler.commit`, which alone decides what happens and counts it.
"""

from collections.abc import Iterator

from scheduler.request import FinishReason, Sequence
from scheduler.step import Sample, Timings, TokenEvent


def token_event(
    sequence: Sequence, sample: Sample, reason: FinishReason | None, now: float, *, first: bool
) -> TokenEvent:
    """A drawn token, and the end where it has a `reason`. `first`: none came before it."""
    request = sequence.request
    if reason is None and not first:  # as nearly all are
        return TokenEvent(request.request_id, sequence.choice, sample.token_id, sample.logprob)
    wants_scores = first and request.params.prompt_logprobs is not None
    return TokenEvent(
        request_id=request.request_id,
        choice=sequence.choice,
        token_id=sample.token_id,
        logprob=sample.logprob,
        finish_reason=reason,
        stop_reason=sample.token_id if reason is FinishReason.STOP else None,
        num_cached=sequence.num_cached if first else None,
        prompt_logprobs=tuple(sequence.prompt_logprobs) if wants_scores else None,
        timings=_timings(sequence, now) if first or reason is not None else None,
        prefix_report=sequence.prefix_report if first else None,
    )


def failure_event(sequence: Sequence, choice: int, error: str) -> TokenEvent:
    return TokenEvent(
        request_id=sequence.request.request_id,
        choice=choice,
        finish_reason=FinishReason.ERROR,
        error=error,
        num_cached=sequence.num_cached,
    )


def deadline_events(sequence: Sequence, now: float) -> Iterator[TokenEvent]:
    """One for each choice that the sequence stands for."""
    has_begun = sequence.first_token_time is not None
    for choice in sequence.choices:
        yield TokenEvent(
            request_id=sequence.request.request_id,
            choice=choice,
            finish_reason=FinishReason.DEADLINE,
            num_cached=sequence.num_cached,
            timings=_timings(sequence, now) if has_begun else None,
        )


def _timings(sequence: Sequence, now: float) -> Timings:
    scheduled, first = sequence.first_scheduled_time, sequence.first_token_time
    assert scheduled is not None and first is not None
    arrival = sequence.request.arrival_time
    return Timings(queue=scheduled - arrival, prefill=first - scheduled, decode=now - first)
