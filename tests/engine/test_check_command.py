"""`octavo check` tells agreement from disagreement."""

import io

import pytest
import torch
from conftest_types import TinyModelDir
from rich.console import Console

from engine.attention import KERNELS, Attention
from engine.check import run_check
from engine.config import EngineConfig


def check(folder: object, layers: str = "auto") -> tuple[int, str]:
    output = io.StringIO()
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        page_size=4,
        num_pages=1024,
        threads=1,
        layers=layers,
        self_check=False,
    )
    status = run_check(config, Console(file=output, width=140))
    return status, output.getvalue()


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_every_way_of_serving_agrees(tiny_model_dir: TinyModelDir, family: str) -> None:
    status, output = check(tiny_model_dir(family))
    assert status == 0, output
    assert "Every answer equals" in output
    for way in ("alone", "batched", "shared", "chunked", "forked", "preempted"):
        assert way in output


def test_a_wrong_kernel_is_found_out(
    tiny_model_dir: TinyModelDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = KERNELS["gathered"]

    def forgets_the_scale(query: torch.Tensor, *rest: object) -> torch.Tensor:
        return right(query, *rest[:3], 1.0, *rest[4:])  # type: ignore[arg-type]

    monkeypatch.setattr(
        "engine.build.select_kernel", lambda *_, **__: ("x", Attention(forgets_the_scale))
    )
    status, output = check(tiny_model_dir("llama"), "transformers")
    assert status == 1
    assert "Answers differ in float32" in output
