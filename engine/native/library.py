"""Chooses and loads the kernels that this processor can run, and tells ctypes their signatures.

`OCTAVO_CPU_ISA` forces a variant; `none` turns native code off. Whoever gets `None` takes the torch
path; why is logged once, as a warning. Addresses of tensors are passed as integers.
"""

import ctypes
import functools
import logging
import os
from collections.abc import Callable, Mapping
from ctypes import POINTER, c_char_p, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from types import MappingProxyType

from engine.machine import cpu_flags
from engine.native.build import SOURCES, VARIANTS, fingerprint, library_path, machine

logger = logging.getLogger(__name__)

ISA_VARIABLE = "OCTAVO_CPU_ISA"
ABI = 2
_BUILD = "python -m engine.native.build"

F32, BF16, I8, F16 = range(4)  # enum OctavoDtype


class Pages(ctypes.Structure):
    """One layer's keys and values: OctavoPages."""

    _fields_ = (
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_scales", c_void_p),
        ("value_scales", c_void_p),
        ("dtype", c_int32),
        ("page_size", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
    )


class Batch(ctypes.Structure):
    """The geometry of one step: OctavoBatch."""

    _fields_ = (
        ("slots", c_void_p),
        ("positions", c_void_p),
        ("page_tables", c_void_p),
        ("query_starts", c_void_p),
        ("context_lens", c_void_p),
        ("table_stride", c_int64),
        ("sequences", c_int32),
        ("tokens", c_int32),
    )


class Linear(ctypes.Structure):
    """A packed linear layer: OctavoLinear."""

    _fields_ = (
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("in_features", c_int32),
        ("out_features", c_int32),
        ("dtype", c_int32),
        ("panel_step", c_int32),
    )


class Layer(ctypes.Structure):
    """A decoder layer of the Llama family: OctavoLayer."""

    _fields_ = (
        ("qkv", Linear),
        ("out", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("input_norm", c_void_p),
        ("attention_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("window", c_int32),
        ("reserved", c_int32),
    )


class Model(ctypes.Structure):
    """A model of the Llama family: OctavoModel."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("final_norm", c_void_p),
        ("embedding", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("head", Linear),
        ("num_layers", c_int32),
        ("embedding_dtype", c_int32),
        ("hidden", c_int32),
        ("intermediate", c_int32),
        ("query_heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("reserved", c_int32),
    )


class Step(ctypes.Structure):
    """One forward pass: OctavoStep."""

    _fields_ = (
        ("batch", POINTER(Batch)),
        ("pages", POINTER(Pages)),
        ("token_ids", c_void_p),
        ("rows", c_void_p),
        ("logits", c_void_p),
        ("best", c_void_p),
        ("peaks", c_void_p),
        ("workspace", c_void_p),
        ("num_rows", c_int32),
        ("reserved", c_int32),
    )


# name: (result, arguments), as in octavo.h
_SIGNATURES: Mapping[str, tuple[object, tuple[object, ...]]] = MappingProxyType(
    {
        "octavo_abi": (c_int32, ()),
        "octavo_isa": (c_char_p, ()),
        "octavo_sources": (c_char_p, ()),
        "octavo_set_threads": (None, (c_int32,)),
        "octavo_threads": (c_int32, ()),
        "octavo_count_threads": (c_int32, ()),
        "octavo_read": (c_int64, (c_void_p, c_int64)),
        "octavo_packed_bytes": (c_int64, (c_int32, c_int32, c_int32)),
        "octavo_panel": (c_int32, ()),
        "octavo_pack": (
            None,
            (c_void_p, c_int32, c_int32, c_int32, c_int32, c_void_p, c_void_p),
        ),
        "octavo_unpack": (None, (POINTER(Linear), c_void_p, c_int32, c_void_p)),
        "octavo_linear": (
            None,
            (POINTER(Linear), c_void_p, c_int64, c_int32, c_void_p, c_int64),
        ),
        "octavo_workspace_bytes": (c_int64, (POINTER(Model), c_int32, c_int32)),
        "octavo_model_step": (None, (POINTER(Model), POINTER(Step))),
        "octavo_write_pages": (
            None,
            (POINTER(Pages), POINTER(Batch), c_void_p, c_void_p, c_int32, c_int64),
        ),
        "octavo_draw": (
            None,
            (
                *(c_void_p, c_int32, c_int64, c_int32),
                *(c_void_p, c_void_p, c_int32, c_int32, c_void_p),
            ),
        ),
        "octavo_logprobs": (
            None,
            (
                *(c_void_p, c_int32, c_int64, c_int32, c_void_p, c_int32),
                *(c_void_p, c_void_p, c_int32, c_void_p, c_void_p),
            ),
        ),
        "octavo_rms_norm": (
            None,
            (
                *(c_void_p, c_int32, c_int64, c_int64),
                *(c_void_p, c_int32, c_float, c_int32, c_void_p),
            ),
        ),
        "octavo_attention": (
            None,
            (
                *(POINTER(Pages), POINTER(Batch), c_void_p, c_void_p, c_int32),
                *(c_int64, c_int64, c_int32, c_float, c_int32),
            ),
        ),
    }
)


class LibraryError(Exception):
    """A variant cannot be loaded; the message says why."""


class NativeLibrary:
    """The functions of octavo.h for one instruction set, as attributes of `functions`."""

    def __init__(self, isa: str, path: Path) -> None:
        """Raises `LibraryError` for a file that is missing, foreign or of other sources."""
        if not path.is_file():
            raise LibraryError(f"it was not built ({_BUILD})")
        try:
            self.functions = ctypes.CDLL(str(path))
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(self.functions, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as error:
            raise LibraryError(f"it cannot be loaded: {error}") from error
        self.isa: str = self.functions.octavo_isa().decode()
        built_from = self.functions.octavo_sources().decode()
        if self.functions.octavo_abi() != ABI or built_from != fingerprint():
            raise LibraryError(f"it was built from other sources ({_BUILD})")
        if self.isa != isa:
            raise LibraryError(f"it was compiled for {self.isa}")

    def set_threads(self, threads: int) -> None:
        self.functions.octavo_set_threads(threads)


def runnable_variants() -> list[str]:
    """The variants that this processor can run, best first, built or not."""
    flags = cpu_flags()
    return [
        name
        for name, variant in VARIANTS.items()
        if variant.machine == machine() and variant.needs <= flags
    ]


@functools.cache
def load_library(
    isa: str | None = None,
    folder: Path = SOURCES,
    check: Callable[[NativeLibrary], None] | None = None,
) -> NativeLibrary | None:
    """The library of `isa`, or of $OCTAVO_CPU_ISA, or the best that loads; None where none does.

    `check` raises `LibraryError` for a library that computes something wrong: it is passed over.
    """
    chosen = isa or os.environ.get(ISA_VARIABLE) or "auto"
    if chosen == "none":
        logger.warning("native CPU kernels are off (%s=none): torch computes", ISA_VARIABLE)
        return None
    if chosen != "auto" and chosen not in VARIANTS:
        names = ", ".join(("auto", "none", *VARIANTS))
        logger.warning("%s=%s is unknown; there are: %s", ISA_VARIABLE, chosen, names)
        chosen = "auto"
    runnable = runnable_variants()
    reasons: list[str] = []
    for name in runnable if chosen == "auto" else (chosen,):
        try:
            if name not in runnable:
                raise LibraryError("this processor cannot run it")
            if name == "amx":
                _ask_for_tiles()
            library = NativeLibrary(name, library_path(name, folder))
            if check is not None:
                check(library)
            if reasons:
                logger.warning("native CPU kernels %s: %s", name, "; ".join(reasons))
            return library
        except LibraryError as error:
            reasons.append(f"{name}: {error}")
    why = "; ".join(reasons) or f"there are none for this processor ({machine()})"
    logger.warning("no native CPU kernels, torch computes instead (slower): %s", why)
    return None


def _ask_for_tiles() -> None:
    """Linux grants the tile registers to a process that asks. Raises `LibraryError`."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    if ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data):
        raise LibraryError("the system does not grant the tile registers")
