"""The check before the first request lets rounding pass and nothing else."""

from collections.abc import Callable

import pytest
import torch
from conftest_types import TinyModelDir

import engine.build
from engine.attention import KERNELS, Attention
from engine.build import load_engine
from engine.config import EngineConfig, EngineError


def forgets_the_scale(query: torch.Tensor, *rest: object) -> torch.Tensor:
    return KERNELS["gathered"](query, *rest[:3], 1.0, *rest[4:])  # type: ignore[arg-type]


def sees_one_token_only(query: torch.Tensor, *rest: object) -> torch.Tensor:
    return KERNELS["gathered"](query, *rest[:4], 1)  # type: ignore[arg-type]


def load(folder: object, dtype: str, layers: str = "auto") -> None:
    config = EngineConfig(
        model=str(folder),
        dtype=dtype,
        device="cpu",
        page_size=4,
        num_pages=64,
        threads=1,
        layers=layers,
    )
    load_engine(config, lambda progress: None)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_a_sound_model_passes_in_every_dtype(
    tiny_model_dir: TinyModelDir, family: str, dtype: str
) -> None:
    load(tiny_model_dir(family), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("wrong", [forgets_the_scale, sees_one_token_only])
def test_wrong_attention_is_refused_in_every_dtype(
    tiny_model_dir: TinyModelDir,
    monkeypatch: pytest.MonkeyPatch,
    wrong: Callable[..., torch.Tensor],
    dtype: str,
) -> None:
    def select(*_: object, **__: object) -> tuple[str, Attention]:
        return "wrong", Attention(wrong)

    monkeypatch.setattr(engine.build, "select_kernel", select)
    with pytest.raises(EngineError, match="computes something else over pages"):
        load(tiny_model_dir("llama"), dtype, "transformers")
