"""On a CUDA device (`make test-cuda`): kernels against the reference, a whole engine against
transformers, recorded steps, determinism. Everything here is skipped where there is none."""

import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest_types import TinyModelDir
from engine_harness import Harness, random_prompt
from rich.console import Console

from engine.build import LoadedEngine, load_engine
from engine.check import run_check
from engine.config import EngineConfig
from engine.oracle import cold_generate
from kv_cache import PageCopy
from kv_cache.storage import PageStorage, index_copy
from scheduler import SamplingParams

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.timeout(900),
    # A driver or a GPU that nobody had yet may have its own warnings; they are shown.
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
KERNEL_GROUPS = ("ragged", "windows", "shapes", "invariance", "pages")
DTYPES = ["float32", "bfloat16", "float16"]


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """Each test leaves the device as it found it: an engine of the default size fills it, and
    recorded steps hold themselves in a circle."""
    yield
    gc.collect()
    torch.cuda.empty_cache()


def load(folder: Path, **settings: object) -> LoadedEngine:
    config = EngineConfig(
        **{
            "model": str(folder),
            "dtype": "float32",
            "device": "cuda",
            "page_size": 16,
            "num_pages": 256,
            "max_num_seqs": 32,
            **settings,
        }  # type: ignore[arg-type]
    )
    return load_engine(config, lambda progress: None)


def harness(loaded: LoadedEngine, **settings: int) -> Harness:
    return Harness(loaded, page_size=16, **settings)


@needs_triton
@pytest.mark.parametrize("group", KERNEL_GROUPS)
def test_triton_kernels_agree_with_the_reference(group: str) -> None:
    from paged_cases import run_group

    run_group(group, torch.device("cuda"))


@needs_triton
def test_batch_invariant_arithmetic_and_draws_are_right() -> None:
    from invariant_cases import check_draws, check_means, check_products

    for check in (check_products, check_means, check_draws):
        check(torch.device("cuda"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_way_of_serving_agrees_with_transformers(
    tiny_model_dir: TinyModelDir, dtype: str
) -> None:
    """`octavo check`, which fails on any difference in float32."""
    # Of pages this small a whole GPU would hold tens of millions.
    config = EngineConfig(
        model=str(tiny_model_dir("qwen3")), device="cuda", dtype=dtype, num_pages=4096
    )
    console = Console(record=True, width=120)
    assert run_check(config, console) == 0, console.export_text()


@pytest.mark.real_model
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_default_model_agrees_with_transformers(dtype: str) -> None:
    assert run_check(EngineConfig(device="cuda", dtype=dtype, offline=True)) == 0


@pytest.mark.parametrize("attention", ["auto", "triton", "gathered"])
@pytest.mark.parametrize("enforce_eager", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_answers_are_transformers_with_and_without_recorded_steps(
    tiny_model_dir: TinyModelDir, family: str, attention: str, enforce_eager: bool
) -> None:
    if attention == "triton":
        pytest.importorskip("triton")
    loaded = load(tiny_model_dir(family), attention=attention, enforce_eager=enforce_eager)
    serving = harness(loaded)
    prompts = [random_prompt(length) for length in (1, 5, 17, 40, 90)]
    for i, prompt in enumerate(prompts):
        serving.add(str(i), prompt, 20)
        serving.step()
    serving.drain()
    for i, prompt in enumerate(prompts):
        assert serving.tokens(str(i)) == cold_generate(loaded.model, prompt, 20)


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_deterministic_answers_do_not_depend_on_the_batch(
    tiny_model_dir: TinyModelDir, dtype: str
) -> None:
    """Log-probabilities to the last bit: alone, in company, in chunks, after preemption."""
    loaded = load(tiny_model_dir("llama"), dtype=dtype, deterministic=True)
    params = SamplingParams(temperature=0.9, seed=3, logprobs=2)
    prompts = [random_prompt(length) for length in (4, 30, 61)]

    def run(together: bool, **settings: int) -> list[object]:
        serving = harness(loaded, **settings)
        for i, prompt in enumerate(prompts):
            serving.add(str(i), prompt, 24, params)
            if not together:
                serving.drain()
        serving.drain()
        return [
            [(event.token_id, event.logprob) for event in serving.events[str(i), 0]]
            for i in range(len(prompts))
        ]

    alone = run(together=False)
    assert run(together=True) == alone
    assert run(together=True, budget=11) == alone
    assert run(together=True, num_pages=12) == alone


def test_seeded_draws_on_the_device_are_those_of_the_host(tiny_model_dir: TinyModelDir) -> None:
    loaded = load(tiny_model_dir("llama"))
    for fields in ({}, {"top_k": 20}, {"top_p": 0.8}, {"min_p": 0.05, "top_k": 40}):
        serving = harness(loaded)
        for name, logprobs in (("device", None), ("host", 0)):
            params = SamplingParams(temperature=0.9, seed=4, logprobs=logprobs, **fields)  # type: ignore[arg-type]
            serving.run(name, random_prompt(12), 24, params)
        assert serving.tokens("device") == serving.tokens("host"), fields


@needs_triton
def test_draws_are_halved_by_triton() -> None:
    from engine.sampling.on_device import triton_descends

    assert triton_descends(torch.device("cuda"))


def test_pages_are_copied_as_on_the_cpu() -> None:
    from engine.cuda.candidates import page_copier

    device = torch.device("cuda")
    copier = page_copier(device, torch.bfloat16)
    if importlib.util.find_spec("triton") is not None:
        assert copier is not index_copy
    storage = PageStorage(
        num_layers=3,
        num_pages=40,
        page_size=16,
        num_kv_heads=2,
        head_dim=64,
        dtype=torch.bfloat16,
        device=device,
        copier=copier,
    )
    storage.data.normal_()
    expected = storage.data.clone()
    for copies in ([(1, 0), (1, 8), (5, 39)], [(0, 2), (2, 7)]):
        sources, targets = torch.tensor(copies, device=device).t()
        expected[:, :, targets] = expected[:, :, sources]
        storage.copy_pages([PageCopy(*pair) for pair in copies])
        assert torch.equal(storage.data, expected)


def test_pages_fill_what_the_utilization_leaves(tiny_model_dir: TinyModelDir) -> None:
    loaded = load(tiny_model_dir("llama"), num_pages=None, gpu_memory_utilization=0.3)
    free, total = torch.cuda.mem_get_info()
    assert loaded.info.kv_cache_bytes > 0.1 * total
    assert total - free < 0.4 * total
