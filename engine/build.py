"""Builds an engine from its settings: model, pages, kernel, scheduler, and a check of the result.

Runs where the engine runs (its own process, or the caller's for the offline `LLM`). Whatever makes
serving impossible raises `EngineError` here, with one line for the user.
"""

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.attention import ATTENTION_NAME, register_attention, select_kernel
from engine.compiled_model import CompiledModel
from engine.config import EngineConfig, EngineError, EngineInfo
from engine.engine import Engine
from engine.loading import ModelSpec, Progress, Reporter, resolve_model
from engine.loading.load import load_model
from engine.machine import usable_threads
from engine.model_runner import ModelRunner
from engine.platform import MemoryBudget, Platform, choose_platform
from engine.self_check import self_check
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
    return Engine(Scheduler(scheduler_config, cache), loaded.runner, loaded.info)


def load_engine(config: EngineConfig, report: Reporter) -> LoadedEngine:
    """Load the model, size and allocate the pages, choose the kernel. Raises `EngineError`."""
    start = time.monotonic()
    threads = config.threads or usable_threads()
    torch.set_num_threads(threads)
    model_dir = resolve_model(
        config.model, cache_dir=config.cache_dir, offline=config.offline, report=report
    )
    report(Progress("loading the model"))
    register_attention()
    loaded = load_model(
        model_dir,
        dtype=config.dtype,
        device=config.device,
        attn_implementation=ATTENTION_NAME,
    )
    dtype, device = getattr(torch, loaded.dtype), torch.device(loaded.device)
    platform = choose_platform(config, loaded)
    attention_name, attention = select_kernel(
        config.attention,
        spec=loaded.spec,
        dtype=dtype,
        device=device,
        page_size=config.page_size,
        kernels=platform.attention_candidates(),
    )
    model = CompiledModel(loaded.model) if config.torch_compile else loaded.model
    plan = _plan_pages(config, loaded.spec, dtype, platform.memory(model, attention))
    storage = _allocate(loaded.spec, plan.num_pages, config.page_size, dtype, device, platform)
    runner = platform.runner(model, storage, attention, plan.max_model_len)
    if config.self_check:
        report(Progress("checking paged attention against the plain model"))
        self_check(loaded.model, runner, page_size=config.page_size, num_pages=plan.num_pages)
    notes = (plan.note, *platform.warm_up(report))
    info = EngineInfo(
        model=config.model,
        model_dir=model_dir,
        dtype=loaded.dtype,
        device=loaded.device,
        threads=threads,
        attention=attention_name,
        vocab_size=loaded.spec.vocab_size,
        max_model_len=plan.max_model_len,
        page_size=config.page_size,
        num_pages=plan.num_pages,
        kv_cache_bytes=plan.bytes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        enable_prefix_caching=config.enable_prefix_caching,
        load_seconds=time.monotonic() - start,
        notes=notes,
    )
    return LoadedEngine(loaded.model, runner, info)


def _plan_pages(
    config: EngineConfig, spec: ModelSpec, dtype: torch.dtype, budget: MemoryBudget
) -> CachePlan:
    try:
        return plan_pages(
            bytes_per_page=page_bytes(
                spec.num_layers,
                spec.num_kv_heads,
                spec.head_dim,
                config.page_size,
                dtype.itemsize,
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
    spec: ModelSpec,
    num_pages: int,
    page_size: int,
    dtype: torch.dtype,
    device: torch.device,
    platform: Platform,
) -> PageStorage:
    try:
        return PageStorage(
            num_layers=spec.num_layers,
            num_pages=num_pages + platform.padding_pages,
            page_size=page_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
            device=device,
            copier=platform.page_copier(),
        )
    except (RuntimeError, MemoryError) as error:
        raise EngineError(
            f"the KV cache of {num_pages} pages cannot be allocated on {device}: lower "
            "--kv-cache-memory-bytes or --num-gpu-blocks-override"
        ) from error
