"""What differs between devices when an engine is built: how to attend, how much memory there is,
how pages are copied, what runs the steps. `engine.build` asks in that order; the CPU's answers are
here, those for CUDA in `engine/cuda/platform.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.attention import KERNELS, Attention, Kernel
from engine.config import EngineConfig, EngineError
from engine.layers import Layers
from engine.loading import Reporter
from engine.loading.load import LoadedModel
from engine.machine import available_memory_bytes
from engine.model_runner import ModelRunner
from engine.native.library import NativeLibrary
from engine.sampling import NativeSampler
from kv_cache.storage import PageCopier, PageStorage, index_copy


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Bytes that can be allocated for pages, and how many of them are by default (None: as
    `plan_pages` decides)."""

    available_bytes: int
    default_bytes: int | None = None


class Platform(Protocol):
    """A kind of device, as far as building an engine goes."""

    @property
    def device(self) -> torch.device: ...

    @property
    def padding_pages(self) -> int:
        """Pages to allocate behind those that the cache knows."""
        ...

    def attention_candidates(self) -> Mapping[str, Kernel | Attention]: ...

    def memory(self, layers: Layers, attention: Attention, kv_dtype: torch.dtype) -> MemoryBudget:
        """What is free once everything but the pages has been set aside. Raises `EngineError`."""
        ...

    def page_copier(self, kv_dtype: torch.dtype) -> PageCopier: ...

    def runner(
        self, layers: Layers, storage: PageStorage, attention: Attention, max_model_len: int
    ) -> ModelRunner: ...

    def warm_up(self, report: Reporter) -> tuple[str, ...]:
        """Do now what the first requests would wait for; what was decided, in plain words."""
        ...


class CpuPlatform:
    """Nothing out of the ordinary. `deterministic` holds by itself in float32."""

    device = torch.device("cpu")
    padding_pages = 0

    def __init__(
        self, config: EngineConfig, loaded: LoadedModel, library: NativeLibrary | None
    ) -> None:
        if config.deterministic and loaded.dtype != "float32":
            raise EngineError(
                f"--deterministic needs --dtype float32 on a CPU, and the model is {loaded.dtype}"
            )
        self._config = config
        self._loaded = loaded
        self._library = library

    def attention_candidates(self) -> Mapping[str, Kernel | Attention]:
        return KERNELS

    def memory(self, layers: Layers, attention: Attention, kv_dtype: torch.dtype) -> MemoryBudget:
        # Mapped weights count as free memory until they are read; they will be.
        return MemoryBudget(available_memory_bytes() - self._loaded.mapped_bytes)

    def page_copier(self, kv_dtype: torch.dtype) -> PageCopier:
        return index_copy

    def runner(
        self, layers: Layers, storage: PageStorage, attention: Attention, max_model_len: int
    ) -> ModelRunner:
        return ModelRunner(
            layers.forward(storage, attention),
            storage,
            page_size=self._config.page_size,
            sampler=NativeSampler(self._library) if self._library is not None else None,
        )

    def warm_up(self, report: Reporter) -> tuple[str, ...]:
        return ()


def choose_platform(
    config: EngineConfig, loaded: LoadedModel, library: NativeLibrary | None
) -> Platform:
    """The platform of the device that the model was loaded to. Raises `EngineError`."""
    if torch.device(loaded.device).type == "cuda":
        from engine.cuda.platform import CudaPlatform

        return CudaPlatform(config, loaded)
    return CpuPlatform(config, loaded, library)
