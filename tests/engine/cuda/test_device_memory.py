"""The memory of the largest step is measured by running one; too little is told in plain words."""

from collections.abc import Callable

import pytest
import torch
from cuda_on_cpu import transformers_layers

from engine.attention import Attention, PagedBatch
from engine.attention.reference import reference_attention
from engine.build import LoadedEngine
from engine.config import EngineError
from engine.cuda.memory import largest_step_bytes
from engine.cuda.runner import StepLimits
from engine.loading import ModelSpec

SPEC = ModelSpec(
    num_layers=2, num_query_heads=4, num_kv_heads=2, head_dim=8, vocab_size=352, max_model_len=256
)


class CountingMeter:
    def peak_bytes(self, call: Callable[[], object]) -> int:
        call()
        return 12345


class FullMeter:
    def peak_bytes(self, call: Callable[[], object]) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory")


def measure(loaded: LoadedEngine, attention: Attention, meter: object, **limits: int) -> int:
    return largest_step_bytes(
        transformers_layers(loaded),
        SPEC,
        attention,
        page_size=16,
        limits=StepLimits(**limits),
        kv_dtype=torch.float32,
        device=torch.device("cpu"),
        meter=meter,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("limits", "sequences"),
    [
        ({"max_tokens": 100, "max_sequences": 7}, 7),
        ({"max_tokens": 5, "max_sequences": 9}, 5),
        ({"max_tokens": 90, "max_sequences": 1}, 1),
    ],
)
def test_the_step_is_as_large_as_the_limits_allow(
    llama: LoadedEngine, limits: dict[str, int], sequences: int
) -> None:
    seen: list[PagedBatch] = []

    def watching(*arguments: object) -> torch.Tensor:
        batch = arguments[3]
        assert isinstance(batch, PagedBatch)
        seen.append(batch)
        return reference_attention(*arguments)  # type: ignore[arg-type]

    taken = measure(
        llama,
        Attention(watching),
        CountingMeter(),
        **limits,
        max_logit_rows=limits["max_sequences"] + 256,
        max_pages=16,
    )
    assert taken == 12345
    assert sum(seen[0].query_lens) == limits["max_tokens"]
    assert seen[0].num_sequences == sequences


def test_a_step_that_does_not_fit_says_what_to_lower(llama: LoadedEngine) -> None:
    with pytest.raises(EngineError, match=r"400 tokens and 30 seq.*--max-num-batched-tokens or"):
        measure(
            llama,
            Attention(reference_attention),
            FullMeter(),
            max_tokens=400,
            max_sequences=30,
            max_logit_rows=286,
            max_pages=16,
        )
