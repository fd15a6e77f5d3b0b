"""Decides what the next step computes. Pure Python: no torch, no clock of its own."""

from scheduler.config import SchedulerConfig, SchedulerStats
from scheduler.request import FinishReason, Request, Sequence, TokenLogprob
from scheduler.sampling_params import ParameterError, SamplingParams
from scheduler.scheduler import Scheduler, check_fits
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
