"""An event loop whose time passes only when nothing is left to do: waits take no time at all, and
all times come out exact, however busy the machine is."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _NoWait(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    """Looks at the sockets and goes on; what it would have waited is added to the loop's clock."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits, and nothing is due"
            self.loop.now += timeout
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Begins at `now` = 0."""

    def __init__(self) -> None:
        self.now = 0.0
        selector = _NoWait()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


def run_virtually(work: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on such a loop."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
