"""Builds an engine from its settings: model, pages, kernel, scheduler, and a check of the result.

Runs where the engine runs (its own process, or the caller's for the offline `LLM`). Whatever makes
serving impossible raises `EngineError` here, with one line for the user.
"""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from engine.attention import ATTENTION_NAME, register_attention, select_kernel
from engine.config import EngineConfig, EngineError, EngineInfo
from engine.engine import Engine
from engine.layers import NATIVE, TRANSFORMERS, Layers, choose_layers
from engine.llama import try_linears
from engine.loading import ModelSpec, Progress, Reporter, resolve_model
from engine.loading.load import LoadedModel, choose_device, choose_dtype, load_model
from engine.machine import usable_threads
from engine.model_runner import ModelRunner
from engine.native.library import load_library
from engine.platform import MemoryBudget, Platform, choose_platform
from engine.self_check import SelfCheckError, probe_logits, self_check
from engine.step_log import StepLog
from kv_cache import CacheManager
from kv_cache.sizing import CachePlan, CacheSizeError, page_bytes, plan_pages
from kv_cache.storage import PageStorage
from scheduler import Scheduler, SchedulerConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """Everything of an engine but the scheduler: `octavo check` drives one with several."""

    model: "PreTrainedModel"
    runner: ModelRunner
    info: EngineInfo


def build_engine(config: EngineConfig, report: Reporter) -> Engine:
    """Load `config.model` and make an engine of it. Raises `EngineError`."""
    scheduler_config = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_passes=config.max_passes,
        priority_ageing=config.priority_ageing,
    )
    loaded = load_engine(config, report)
    cache = CacheManager(
        loaded.info.num_pages,
        loaded.info.page_size,
        enable_prefix_caching=config.enable_prefix_caching,
    )
    step_log = None if config.step_log is None else StepLog(config.step_log, loaded.info)
    scheduler = Scheduler(scheduler_config, cache)
    return Engine(scheduler, loaded.runner, loaded.info, step_log=step_log)


def load_engine(config: EngineConfig, report: Reporter) -> LoadedEngine:
    """Load the model, size and allocate the pages, choose the kernels. Raises `EngineError`.

    Where the native block fails the self-check the model is loaded anew for the general path.
    """
    start = time.monotonic()
    threads = config.threads or usable_threads()
    torch.set_num_threads(threads)
    model_dir = resolve_model(
        config.model,
        cache_dir=config.cache_dir,
        offline=config.offline,
        report=report,
        with_code=config.trust_remote_code,
    )
    loading = _Loading(config, model_dir, threads, report)
    try:
        loaded = loading.load()
    except SelfCheckError as error:
        if loading.layers_name != NATIVE or config.layers != "auto":
            raise
        logger.warning("the native block is not used: %s", error)
        general = replace(config, layers=TRANSFORMERS)
        loaded = _Loading(general, model_dir, threads, report).load()
    return replace(loaded, info=replace(loaded.info, load_seconds=time.monotonic() - start))


class _Loading:
    """One attempt at loading, from a model's folder to an engine that has been checked."""

    def __init__(
        self, config: EngineConfig, model_dir: Path, threads: int, report: Reporter
    ) -> None:
        self._config, self._model_dir, self._report = config, model_dir, report
        self._threads = threads
        self.layers_name: str | None = None

    def load(self) -> LoadedEngine:
        config = self._config
        self._report(Progress("loading the model"))
        register_attention()
        device_name = choose_device(config.device)
        # torch.compile cannot look into native kernels.
        wanted = device_name == "cpu" and not config.torch_compile
        library = load_library(check=try_linears) if wanted else None
        if library is not None:
            library.set_threads(self._threads)
        loaded = load_model(
            self._model_dir,
            dtype=choose_dtype(config.dtype, device_name, native=library is not None),
            device=device_name,
            attn_implementation=ATTENTION_NAME,
            trust_remote_code=config.trust_remote_code,
        )
        kv_name = loaded.dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
        kv_dtype = getattr(torch, kv_name)
        probed = self._probe(loaded, original=True)
        layers = choose_layers(config, loaded, kv_dtype, library)
        self.layers_name = layers.name
        if probed is None:
            probed = self._probe(loaded, original=False)
        if library is not None:  # packed: what was mapped is not read again
            loaded = replace(loaded, mapped_bytes=0)
        platform = choose_platform(config, loaded, library)
        attention_name, attention = select_kernel(
            config.attention,
            spec=loaded.spec,
            dtype=getattr(torch, loaded.dtype),
            kv_dtype=kv_dtype,
            device=platform.device,
            page_size=config.page_size,
            library=library,
            kernels=platform.attention_candidates(),
        )
        budget = platform.memory(layers, attention, kv_dtype)
        plan = _plan_pages(config, loaded.spec, kv_dtype, budget)
        storage = _allocate(config, loaded.spec, plan.num_pages, kv_dtype, platform)
        runner = platform.runner(layers, storage, attention, plan.max_model_len)
        if probed is not None:
            self._report(Progress("checking the engine against the plain model"))
            self_check(
                loaded.model, runner, probed, page_size=config.page_size, num_pages=plan.num_pages
            )
        notes = (plan.note, *platform.warm_up(self._report))
        info = self._describe(loaded, layers, plan, attention_name, kv_name)
        return LoadedEngine(loaded.model, runner, replace(info, notes=notes))

    def _probe(self, loaded: LoadedModel, *, original: bool) -> torch.Tensor | None:
        """Logits to check against, if this is the moment. Weights that stay what they are: before
        anything is done to the model. Quantised ones are compared with themselves: how far they
        are from the originals is no question of right or wrong."""
        wanted = self._config.self_check and original != bool(self._config.quantization)
        return probe_logits(loaded.model) if wanted else None

    def _describe(
        self,
        loaded: LoadedModel,
        layers: Layers,
        plan: CachePlan,
        attention_name: str,
        kv_name: str,
    ) -> EngineInfo:
        config = self._config
        return EngineInfo(
            model=config.model,
            model_dir=self._model_dir,
            dtype=loaded.dtype,
            device=loaded.device,
            threads=self._threads,
            layers=layers.name,
            attention=attention_name,
            quantization=config.quantization,
            weight_bytes=layers.weight_bytes,
            vocab_size=loaded.spec.vocab_size,
            max_model_len=plan.max_model_len,
            page_size=config.page_size,
            num_pages=plan.num_pages,
            kv_cache_dtype=kv_name,
            kv_cache_bytes=plan.bytes,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_prefix_caching=config.enable_prefix_caching,
            load_seconds=0.0,  # known when all is done
        )


def _plan_pages(
    config: EngineConfig, spec: ModelSpec, kv_dtype: torch.dtype, budget: MemoryBudget
) -> CachePlan:
    try:
        return plan_pages(
            bytes_per_page=page_bytes(
                spec.num_layers,
                spec.num_kv_heads,
                spec.head_dim,
                config.page_size,
                kv_dtype.itemsize,
                scale_bytes=4 if kv_dtype == torch.int8 else 0,
            ),
            page_size=config.page_size,
            model_max_len=spec.max_model_len,
            available_bytes=budget.available_bytes,
            max_model_len=config.max_model_len,
            num_pages=config.num_pages,
            kv_cache_memory_bytes=config.kv_cache_memory_bytes,
            default_bytes=budget.default_bytes,
        )
    except CacheSizeError as error:
        raise EngineError(str(error)) from error


def _allocate(
    config: EngineConfig,
    spec: ModelSpec,
    num_pages: int,
    kv_dtype: torch.dtype,
    platform: Platform,
) -> PageStorage:
    try:
        return PageStorage(
            num_layers=spec.num_layers,
            num_pages=num_pages + platform.padding_pages,
            page_size=config.page_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=kv_dtype,
            device=platform.device,
            copier=platform.page_copier(kv_dtype),
        )
    except (RuntimeError, MemoryError) as error:
        raise EngineError(
            f"the KV cache of {num_pages} pages cannot be allocated on {platform.device}: lower "
            + ("--gpu-memory-utilization, " if platform.device.type == "cuda" else "")
            + "--kv-cache-memory-bytes or --num-gpu-blocks-override"
        ) from error
