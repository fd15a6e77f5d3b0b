"""An engine's start on CUDA, wired together on the CPU: the driver's answers are made up, and the
steps are replayed by a stand-in."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest_types import TinyModelDir
from cuda_on_cpu import StandInRecorder, geometry_attention
from engine_harness import Harness, cold, random_prompt

import engine.build
from engine.attention import KERNELS, Attention
from engine.build import LoadedEngine, load_engine
from engine.config import EngineConfig, EngineError
from engine.cuda import platform as cuda_platform
from engine.cuda.platform import CudaPlatform
from engine.loading import Progress

TOTAL = 64 * 2**20
STEP = 2 * 2**20


class MadeUpMeter:
    def __init__(self, device: torch.device) -> None:
        pass

    def peak_bytes(self, call: Callable[[], object]) -> int:
        call()
        return STEP


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> StandInRecorder:
    recorder = StandInRecorder()
    candidates = {"triton": Attention(geometry_attention), "gathered": KERNELS["gathered"]}
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (TOTAL // 2, TOTAL))
    monkeypatch.setattr(cuda_platform, "CudaMeter", MadeUpMeter)
    monkeypatch.setattr(cuda_platform, "CudaRecorder", lambda: recorder)
    monkeypatch.setattr(cuda_platform, "cuda_attention", lambda device, deterministic: candidates)
    monkeypatch.setattr(engine.build, "load_library", lambda **_: None)  # as on CUDA
    monkeypatch.setattr(
        engine.build,
        "choose_platform",
        lambda config, loaded, library: CudaPlatform(config, loaded),
    )
    return recorder


def load(folder: Path, reports: list[Progress] | None = None, **settings: object) -> LoadedEngine:
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        threads=1,  # two would wait for each other where other tests run
        page_size=4,
        max_num_seqs=32,
        max_num_batched_tokens=256,
    )
    heard = reports if reports is not None else []
    return load_engine(replace(config, **settings), heard.append)  # type: ignore[arg-type]


@pytest.mark.parametrize("attention", ["auto", "triton"])
def test_steps_are_recorded_at_start_and_answer_rightly(
    tiny_model_dir: TinyModelDir, recorder: StandInRecorder, attention: str
) -> None:
    reports: list[Progress] = []
    loaded = load(tiny_model_dir("llama"), reports, attention=attention)
    assert recorder.recordings > 4
    assert any("recording" in report.message for report in reports)
    assert any("recorded for" in note for note in loaded.info.notes)
    recorder.replays.clear()
    prompt = random_prompt(7)
    assert Harness(loaded).run("a", prompt, 9) == cold(loaded, prompt, 9)
    assert recorder.replays == [1] * 8


@pytest.mark.parametrize("settings", [{"enforce_eager": True}, {"attention": "gathered"}])
def test_steps_are_not_recorded_where_that_was_asked_for(
    tiny_model_dir: TinyModelDir, recorder: StandInRecorder, settings: dict[str, object]
) -> None:
    loaded = load(tiny_model_dir("llama"), **settings)
    prompt = random_prompt(7)
    assert Harness(loaded).run("a", prompt, 9) == cold(loaded, prompt, 9)
    assert recorder.recordings == 0
    assert any("kernel by kernel" in note for note in loaded.info.notes)


def test_pages_get_what_the_largest_step_and_the_utilization_leave(
    tiny_model_dir: TinyModelDir, recorder: StandInRecorder
) -> None:
    page_bytes = 2 * 2 * 2 * 8 * 4 * 4
    loaded = load(tiny_model_dir("llama"), gpu_memory_utilization=0.75)
    assert loaded.info.num_pages == (TOTAL // 2 - STEP - TOTAL // 4) // page_bytes
    # One page more is there, for padding; the cache does not know it.
    assert loaded.runner.storage.data.shape[2] == loaded.info.num_pages + 1


def test_no_memory_left_to_record_says_what_to_lower(
    tiny_model_dir: TinyModelDir, recorder: StandInRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(call: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(recorder, "record", full)
    with pytest.raises(EngineError, match=r"gpu-memory-utilization \(0.9\) or .*enforce-eager"):
        load(tiny_model_dir("llama"))


def refuse(call: object) -> None:
    raise RuntimeError("operation not permitted when stream is capturing")


def replay_stale_logits(call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    stale = call().clone()
    return lambda: stale


@pytest.mark.parametrize("record", [refuse, replay_stale_logits])
def test_steps_that_cannot_be_recorded_rightly_are_computed_all_the_same(
    tiny_model_dir: TinyModelDir,
    recorder: StandInRecorder,
    monkeypatch: pytest.MonkeyPatch,
    record: object,
) -> None:
    monkeypatch.setattr(recorder, "record", record)
    loaded = load(tiny_model_dir("llama"))
    assert any("recording them failed" in note for note in loaded.info.notes)
    prompt = random_prompt(7)
    assert Harness(loaded).run("a", prompt, 9) == cold(loaded, prompt, 9)


def test_more_seats_than_tokens_of_a_step_record_no_step_that_cannot_be(
    tiny_model_dir: TinyModelDir, recorder: StandInRecorder
) -> None:
    load(tiny_model_dir("llama"), max_num_batched_tokens=4)
    assert recorder.recordings == 3  # of 1, 2 and 4 sequences


def test_deterministic_serving_needs_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine.cuda import candidates

    properties = SimpleNamespace(multi_processor_count=8)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(candidates, "has", lambda package: False)
    assert set(candidates.cuda_attention(torch.device("cpu"), deterministic=False)) == {
        *KERNELS,
        "varlen",
    }
    with pytest.raises(EngineError, match="needs Triton"):
        candidates.cuda_attention(torch.device("cpu"), deterministic=True)
