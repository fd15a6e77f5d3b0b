"""Decides what the next step computes. Pure Python: no torch, no clock of its own."""

from scheduler.config import SchedulerConfig, SchedulerStats
from scheduler.fitting import check_fits
from scheduler.request import MAX_PRIORITY, FinishReason, Request, Sequence, TokenLogprob
from scheduler.sampling_params import ParameterError, SamplingParams
from scheduler.scheduler import Scheduler
from scheduler.step import (
    Chunk,
    ChunkResult,
    Sample,
    StepPlan,
    StepResult,
    Timings,
    TokenEvent,
)

__all__ = [
    "MAX_PRIORITY",
    "Chunk",
    "ChunkResult",
    "FinishReason",
    "ParameterError",
    "Request",
    "Sample",
    "SamplingParams",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
    "Sequence",
    "StepPlan",
    "StepResult",
    "Timings",
    "TokenEvent",
    "TokenLogprob",
    "check_fits",
]
