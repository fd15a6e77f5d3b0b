"""How a step is recorded: warm before it is, on one stream, and what a failure leaves behind. The
driver is made up: it tells in which order it was asked."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from engine.cuda.decode_graphs import CudaRecorder


class Stream:
    def __init__(self, driver: "MadeUpDriver", name: str) -> None:
        self._driver, self._name = driver, name

    def __repr__(self) -> str:
        return self._name

    def wait_stream(self, other: "Stream") -> None:
        self._driver.asked.append(f"{self} waits for {other}")


class MadeUpDriver:
    """In place of torch.cuda; a recording that failed raises once more when it is ended, and leaves
    its stream in place, as torch does."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.main = self.current = Stream(self, "main")

    def new_stream(self) -> Stream:
        return Stream(self, "side")

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextmanager
    def graph(self, graph: object, *, pool: str, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        self.asked.append(f"record on {stream} in {pool}")
        try:
            yield
        except Exception:
            raise RuntimeError("the recording was invalidated")  # noqa: B904
        self.current = before

    class Graph:
        replays = 0

        def replay(self) -> None:
            self.replays += 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> MadeUpDriver:
    driver = MadeUpDriver()
    for name, value in {
        "graph_pool_handle": lambda: "the pool",
        "Stream": driver.new_stream,
        "current_stream": lambda: driver.current,
        "set_stream": driver.set_stream,
        "stream": driver.stream,
        "graph": driver.graph,
        "CUDAGraph": driver.Graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return driver


def test_a_call_is_warm_before_it_is_recorded_on_the_same_stream(driver: MadeUpDriver) -> None:
    output = torch.zeros(1)

    def call() -> torch.Tensor:
        driver.asked.append(f"call on {driver.current}")
        return output

    recorder = CudaRecorder()
    replay = recorder.record(call)
    once = [
        "side waits for main",
        "call on side",
        "call on side",
        "main waits for side",
        "record on side in the pool",
        "call on side",
    ]
    assert driver.asked == once
    assert driver.current is driver.main
    assert replay() is output
    assert driver.asked == once, "a replay calls nothing"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (RuntimeError("operation not permitted"), RuntimeError),
        (torch.OutOfMemoryError("CUDA out of memory"), torch.OutOfMemoryError),
    ],
)
def test_a_recording_that_fails_says_why_and_goes_back_to_its_stream(
    driver: MadeUpDriver, error: RuntimeError, raised: type[RuntimeError]
) -> None:
    def call() -> torch.Tensor:
        if any("record" in asked for asked in driver.asked):
            raise error
        return torch.zeros(1)

    with pytest.raises(raised):
        CudaRecorder().record(call)
    assert driver.current is driver.main
