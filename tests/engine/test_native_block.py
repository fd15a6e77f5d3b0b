"""The native block computes what transformers computes, for every member of the Llama family and
every option of theirs, and the same tokens for a request whatever it shares a step with.

Logits of these random two-layer models have a spread of 1 to 3; float32 sums in another order move
them by some 1e-5.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_harness import NUM_PAGES, PAGE_SIZE, Harness, random_prompt
from transformers import AutoConfig, AutoModelForCausalLM

from engine.build import LoadedEngine, load_engine
from engine.config import EngineConfig, EngineError
from engine.layers import NATIVE, TRANSFORMERS
from engine.llama import why_not_llama
from engine.native.library import load_library
from engine.oracle import cold_generate, cold_logits
from engine.step_inputs import build_inputs
from kv_cache import CacheManager
from scheduler import Chunk, Request, SamplingParams, Sequence, StepPlan

SHAPE: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama without groups": ("llama", {"num_key_value_heads": 6}),
    "llama one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama scaled as 3.1": ("llama", {"rope_parameters": LLAMA3}),
    "llama scaled linearly": ("llama", {"rope_parameters": LINEAR}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral window": ("mistral", {"sliding_window": 9}),
    "qwen2": ("qwen2", {}),
    "qwen2 window in one layer": ("qwen2", QWEN_WINDOW),
    "qwen3": ("qwen3", {}),
    "qwen3 tied and biased": ("qwen3", {"tie_word_embeddings": True, "attention_bias": True}),
    "qwen3 window in one layer": ("qwen3", QWEN_WINDOW),
}


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    if load_library() is None:
        pytest.skip("no native kernels here")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Any) -> Any:
    """Folder of one of MODELS, with random weights, biases and norms."""
    folders: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in folders:
            kind, options = MODELS[name]
            folder = tmp_path_factory.mktemp("model")
            torch.manual_seed(sum(map(ord, name)))
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(kind, **(SHAPE | options))
            )
            with torch.no_grad():
                for parameter_name, parameter in model.named_parameters():
                    if parameter_name.endswith("bias"):
                        parameter.normal_(0, 0.3)
                    elif "norm" in parameter_name:
                        parameter.uniform_(0.5, 1.5)
            model.save_pretrained(folder)
            for file in tiny_model_dir("llama").iterdir():
                if "token" in file.name:
                    (folder / file.name).write_bytes(file.read_bytes())
            folders[name] = folder
        return folders[name]

    return of


Folder = Callable[[str], Path]


def load(folder: Path, **settings: Any) -> LoadedEngine:
    defaults = {"dtype": "float32", "device": "cpu", "threads": 1}
    sizes = {"page_size": PAGE_SIZE, "num_pages": NUM_PAGES}
    config = EngineConfig(model=str(folder), **(defaults | sizes | settings))
    return load_engine(config, lambda progress: None)


def untouched(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().requires_grad_(False)


def paged_logits(
    loaded: LoadedEngine, tokens: tuple[int, ...], splits: tuple[int, ...]
) -> torch.Tensor:
    """Logits of every position, computed in chunks that end at `splits`."""
    page_size = loaded.info.page_size
    request = Request(
        request_id="r",
        prompt_token_ids=tokens,
        params=SamplingParams(temperature=0.0),
        max_tokens=1,
        seed=0,
    )
    sequence = Sequence(request, (0,), 0)
    cache = CacheManager(loaded.info.num_pages, page_size, enable_prefix_caching=False)
    sequence.table = cache.attach(tokens)
    cache.reserve(sequence.table, len(tokens))
    found = []
    with torch.inference_mode():
        for start, end in zip((0, *splits[:-1]), splits, strict=True):
            chunk = Chunk(sequence, start, end - start)
            inputs = build_inputs(StepPlan((chunk,)), loaded.runner.storage, page_size)
            inputs = replace(inputs, logit_rows=torch.arange(end - start))
            found.append(loaded.runner.forward(inputs))
            best = loaded.runner.best(inputs)
            assert best is not None
            assert torch.equal(best[0], found[-1].argmax(dim=-1))
            assert torch.equal(best[1], found[-1].amax(dim=-1))
            cache.commit(sequence.table, tokens, end - start)
    return torch.cat(found)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers_in_chunks_of_any_size(folder_of: Folder, name: str) -> None:
    folder = folder_of(name)
    loaded = load(folder)
    assert loaded.info.layers == NATIVE
    tokens = tuple(t % SHAPE["vocab_size"] for t in random_prompt(70, seed=3))
    expected = cold_logits(untouched(folder), tokens)
    for splits in ((70,), (1, 2, 3, 20, 69, 70), tuple(range(1, 71))):
        difference = (paged_logits(loaded, tokens, splits) - expected).abs().max().item()
        assert difference < 2e-4 * expected.std().item(), splits
    # The modules of transformers go on on the packed weights.
    on_packed = cold_logits(loaded.model, tokens)
    assert (on_packed - expected).abs().max() < 2e-4 * expected.std()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_answers_equal_generate(folder_of: Folder, name: str) -> None:
    folder = folder_of(name)
    loaded, oracle = load(folder), untouched(folder)
    harness = Harness(loaded)
    prompts = {
        str(length): tuple(t % SHAPE["vocab_size"] for t in random_prompt(length, seed=length))
        for length in (1, 8, 30)
    }
    for request_id, prompt in prompts.items():
        harness.add(request_id, prompt, max_tokens=24)
    harness.drain()
    for request_id, prompt in prompts.items():
        assert harness.tokens(request_id) == cold_generate(oracle, prompt, 24), request_id


@pytest.mark.parametrize("settings", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_a_request_gets_the_same_tokens_alone_and_among_sixteen(
    folder_of: Folder, settings: dict[str, str]
) -> None:
    loaded = load(folder_of("llama tied"), **settings)
    prompts = {
        str(i): tuple(t % SHAPE["vocab_size"] for t in random_prompt(3 + 2 * i, seed=i))
        for i in range(16)
    }
    together = Harness(loaded)
    for request_id, prompt in prompts.items():
        together.add(request_id, prompt, max_tokens=24)
    together.drain()
    for request_id, prompt in prompts.items():
        alone = Harness(loaded)
        alone.add(request_id, prompt, max_tokens=24)
        alone.drain()
        assert alone.tokens(request_id) == together.tokens(request_id), request_id


@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
def test_smaller_weights_stay_close_to_the_originals(folder_of: Folder, weights: str) -> None:
    folder = folder_of("qwen3")
    settings = {"quantization": weights} if weights == "int8" else {"dtype": weights}
    loaded = load(folder, **settings)
    tokens = tuple(t % SHAPE["vocab_size"] for t in random_prompt(40, seed=1))
    expected = cold_logits(untouched(folder), tokens)
    found = paged_logits(loaded, tokens, (13, 40))
    assert (found - expected).square().mean().sqrt() < 0.1 * expected.std()
    # What is held is what is computed with: transformers on the same weights agrees closely.
    on_packed = cold_logits(loaded.model, tokens)
    bound = 0.05 if weights == "bfloat16" else 2e-3  # its activations are bfloat16 too
    assert (found - on_packed).square().mean().sqrt() < bound * expected.std()


def test_weights_are_held_once(folder_of: Folder) -> None:
    loaded = load(folder_of("llama tied"), quantization="int8")
    left = sum(parameter.numel() for parameter in loaded.model.parameters())
    assert left == (2 * 2 + 1) * SHAPE["hidden_size"]  # the norms
    plain = load(folder_of("llama tied"), layers=TRANSFORMERS)
    assert loaded.info.weight_bytes < 0.4 * plain.info.weight_bytes


def test_the_general_path_can_be_kept(folder_of: Folder) -> None:
    assert load(folder_of("llama"), layers=TRANSFORMERS).info.layers == TRANSFORMERS
    assert load(folder_of("llama"), attention="gathered").info.layers == TRANSFORMERS
    with pytest.raises(EngineError, match=r"layers native cannot compute.*gathered was asked for"):
        load(folder_of("llama"), layers=NATIVE, attention="gathered")


def test_a_model_that_is_not_quite_one_is_told_apart() -> None:
    def tiny(kind: str, **options: Any) -> Any:
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SHAPE | options)))

    assert why_not_llama(tiny("llama")) is None
    assert why_not_llama(tiny("llama", hidden_act="gelu")) == "its activation is gelu, not silu"
    assert "Gemma3ForCausalLM is none of LlamaForCausalLM" in str(
        why_not_llama(tiny("gemma3_text", pad_token_id=0))
    )
    changed = tiny("llama")
    changed.model.layers[1].mlp.up_proj = torch.nn.Sequential(torch.nn.Linear(48, 100))
    assert why_not_llama(changed) == "it holds a Sequential"

    class Subclass(type(changed)):  # type: ignore[misc]
        pass

    changed = tiny("llama")
    changed.__class__ = Subclass
    assert "Subclass is none of" in str(why_not_llama(changed))


def test_quantization_without_kernels_is_refused(
    folder_of: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.build.load_library", lambda **_: None)
    with pytest.raises(EngineError, match="quantization int8 needs the native CPU kernels"):
        load(folder_of("llama"), quantization="int8")


def test_a_block_that_fails_the_check_gives_way_to_the_general_path(
    folder_of: Folder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(self: object, inputs: Any) -> torch.Tensor:
        return torch.randn(len(inputs.logit_rows), SHAPE["vocab_size"])

    monkeypatch.setattr("engine.llama.native.NativeLlama.logits", wrong)
    loaded = load(folder_of("llama"))
    assert loaded.info.layers == TRANSFORMERS
    assert "the native block is not used" in caplog.text
    with pytest.raises(EngineError, match="computes something else"):
        load(folder_of("llama"), layers=NATIVE)
