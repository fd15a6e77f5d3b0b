"""What crosses the pipe between the front end and the engine, one dataclass per message.

Both ends are our own processes on one machine, and read no other classes than ours (see
`engine.pipe`). A prompt's token ids travel as bytes.
"""

from array import array
from dataclasses import dataclass, replace

from engine.config import EngineInfo
from engine.loading import Progress
from scheduler import FinishReason, Request, SchedulerStats, TokenEvent


@dataclass(frozen=True, slots=True)
class Submit:
    """A request, its prompt packed as 32-bit ids."""

    request: Request
    prompt: bytes

    @classmethod
    def pack(cls, request: Request) -> "Submit":
        ids = array("i", request.prompt_token_ids)
        return cls(replace(request, prompt_token_ids=()), ids.tobytes())

    def unpack(self) -> Request:
        return replace(self.request, prompt_token_ids=tuple(array("i", self.prompt)))


@dataclass(frozen=True, slots=True)
class Abort:
    request_id: str
    choice: int | None
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Drop all cached pages that nobody holds, before the next step."""


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Stop after the current step; what is unfinished is dropped."""


@dataclass(frozen=True, slots=True)
class Ready:
    info: EngineInfo


@dataclass(frozen=True, slots=True)
class Fatal:
    """The engine cannot start or go on: one line for the user."""

    reason: str


@dataclass(frozen=True, slots=True)
class Step:
    """The events of one step, and the counters after it.

    `num_commands` counts the commands that this engine has carried out so far, whereby the front
    end knows whether it waits for an answer; `stalled_steps` the steps in a row that got nowhere.
    """

    events: list[TokenEvent]
    stats: SchedulerStats
    num_commands: int
    stalled_steps: int


Command = Submit | Abort | ResetPrefixCache | Shutdown
Report = Progress | Ready | Fatal | Step
