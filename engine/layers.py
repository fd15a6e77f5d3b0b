"""Chooses who computes a model's layers: our native block, or the modules of transformers.

Called once at load, before the pages are allocated. Where weights are packed the model of
transformers goes on on the packed ones, so that they are in memory once; it stays the oracle. The
choice and its reason are logged in one line.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.attention import Attention
from engine.attention.native import why_not_native
from engine.compiled_model import CompiledModel
from engine.config import EngineConfig, EngineError
from engine.forward import Forward, TransformersForward
from engine.general_path import pack_linears, replace_norms
from engine.llama import WEIGHT_DTYPES, NativeLlama, pack_model, why_not_llama
from engine.loading.load import LoadedModel
from engine.native.library import NativeLibrary
from kv_cache.storage import PageStorage

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

NATIVE, TRANSFORMERS = "native", "transformers"
_PACKABLE = ("float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class Layers:
    """The choice: its name, what the weights take, and how to run steps over given pages."""

    name: str
    weight_bytes: int
    forward: Callable[[PageStorage, Attention], Forward]


def choose_layers(
    config: EngineConfig,
    loaded: LoadedModel,
    kv_dtype: torch.dtype,
    library: NativeLibrary | None,
) -> Layers:
    """Pack the model's weights where that is possible. Raises `EngineError` where the settings ask
    for what this model or machine does not have."""
    model = loaded.model
    if config.quantization and library is None:
        raise EngineError(
            f"quantization {config.quantization} needs the native CPU kernels, and there are none "
            + ("here" if loaded.device == "cpu" else f"on {loaded.device}")
        )
    reason = _why_not_block(config, loaded, kv_dtype, library)
    if reason is not None and config.layers == NATIVE:
        raise EngineError(f"layers native cannot compute this model: {reason}")
    weights = config.quantization or loaded.dtype
    if library is not None and reason is None:
        packed = pack_model(model, library, weights)
        logger.info("layers by the native block, weights %s", weights)
        return Layers(
            NATIVE,
            weight_bytes(model) + packed.num_bytes,
            lambda s, _: NativeLlama(model, packed, s),
        )
    logger.info("layers by transformers' modules: %s", reason)
    packed_bytes = 0
    called = CompiledModel(model) if config.torch_compile else model
    if library is not None:
        packed_bytes = _speed_up(config, loaded, library)
    return Layers(
        TRANSFORMERS,
        weight_bytes(model) + packed_bytes,
        lambda _, a: TransformersForward(called, a),
    )


def _speed_up(config: EngineConfig, loaded: LoadedModel, library: NativeLibrary) -> int:
    """Native kernels inside transformers' modules; returns the bytes of packed weights."""
    weights = config.quantization or loaded.dtype
    if weights not in WEIGHT_DTYPES:
        return 0
    packed = pack_linears(loaded.model, library, weights)
    if isinstance(packed, str):
        if config.quantization:
            raise EngineError(f"quantization {config.quantization} does not work here: {packed}")
        logger.warning("linear layers are not packed: %s", packed)
        packed = 0
    norms = replace_norms(loaded.model, library)
    logger.info("%d bytes of packed weights, %d native norms", packed, norms)
    return packed


def weight_bytes(model: "PreTrainedModel") -> int:
    """Bytes of torch's own parameters; what shares memory is counted once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _why_not_block(
    config: EngineConfig,
    loaded: LoadedModel,
    kv_dtype: torch.dtype,
    library: NativeLibrary | None,
) -> str | None:
    """What keeps this model from the native block, in one clause."""
    if config.layers == TRANSFORMERS:
        return "they were asked for"
    if loaded.device != "cpu":
        return f"the device is {loaded.device}"
    if library is None:
        return "there are no native kernels here"
    if loaded.dtype not in _PACKABLE:
        return f"the native block does not compute in {loaded.dtype}"
    if config.attention not in ("auto", NATIVE):
        return f"attention {config.attention} was asked for"
    unfit = why_not_native(
        library,
        dtype=getattr(torch, loaded.dtype),
        kv_dtype=kv_dtype,
        head_dim=loaded.spec.head_dim,
    )
    return unfit or why_not_llama(loaded.model)
