"""Chooses the attention kernel: every candidate is run once on random pages against the reference,
and the fastest that agrees is taken.
"""

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch

from engine.attention.batch import PagedBatch
from engine.attention.gathered import gathered_attention
from engine.attention.kernel import Attention, Kernel
from engine.attention.native import NativeAttention, why_not_native
from engine.attention.reference import reference_attention
from engine.config import EngineError
from engine.loading import ModelSpec
from engine.native.library import NativeLibrary
from kv_cache.storage import PageStorage

logger = logging.getLogger(__name__)

NATIVE = "native"
_PROBE_CALLS = 5
# Queries and contexts of the step that is probed. A GPU would spend such a small one on starting
# kernels: there it has long contexts, too.
_SEQUENCES = (*((1, context) for context in (1, 15, 16, 17, 100, 200, 255, 256)), (50, 120))
_GPU_SEQUENCES = (*_SEQUENCES, *((1, 2048),) * 8, (512, 2048))
# For models that have one: a kernel may do without a window and fail with it.
_WINDOW = 50

# What torch alone computes, on every device.
KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {"reference": reference_attention, "gathered": gathered_attention}
)

# Largest difference from the float32 reference: a few units in the last place of the dtype, for
# values near 1 (weighted means of standard normal ones). int8 pages: half a step of 1/127 of a
# head's largest number, in the keys and in the values.
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}
_INT8_TOLERANCE = 8e-2


def select_kernel(
    name: str,
    *,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    page_size: int,
    kv_dtype: torch.dtype | None = None,
    library: NativeLibrary | None = None,
    kernels: Mapping[str, Kernel | Attention] = KERNELS,
) -> tuple[str, Attention]:
    """The attention called `name`, or with `auto` the fastest one that agrees with the reference.

    `dtype` is the queries', `kv_dtype` the pages' (None: the same). `library` holds the CPU
    kernels, where there are any. Raises `EngineError` for an unknown name, or one that fails on
    this device or disagrees.
    """
    kv_dtype = dtype if kv_dtype is None else kv_dtype
    unfit = _why_not_native(spec, dtype, kv_dtype, device, library)
    candidates = {
        each: kernel if isinstance(kernel, Attention) else Attention(kernel)
        for each, kernel in kernels.items()
    }
    if name not in ("auto", NATIVE, *candidates):
        known = ", ".join(("auto", NATIVE, *candidates))
        raise EngineError(f"attention {name!r} is unknown; there are: {known}")
    if kv_dtype == torch.int8:
        candidates.clear()
    if library is not None and unfit is None:
        native = NativeAttention(library)
        candidates[NATIVE] = Attention(native.attend, native.write)
    elif name == NATIVE or kv_dtype == torch.int8:
        what = "attention native" if name == NATIVE else "a KV cache of int8"
        raise EngineError(f"{what} needs the native CPU kernels: {unfit}")
    elif device.type == "cpu":
        logger.info("native attention is not used: %s", unfit)
    if name != "auto":
        candidates = {name: candidates[name]} if name in candidates else {}
    level = logging.INFO if name == "auto" else logging.WARNING
    return _fastest(candidates, _Probe(spec, dtype, kv_dtype, device, page_size), level)


def _why_not_native(
    spec: ModelSpec,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    device: torch.device,
    library: NativeLibrary | None,
) -> str | None:
    if device.type != "cpu":
        return f"the device is {device.type}"
    if library is None:
        return "there are none here"
    return why_not_native(library, dtype=dtype, kv_dtype=kv_dtype, head_dim=spec.head_dim)


def _fastest(
    candidates: Mapping[str, Attention], probe: "_Probe", level: int
) -> tuple[str, Attention]:
    """The fastest that agrees; what fails is logged at `level`."""
    timings: dict[str, float] = {}
    for name, attention in candidates.items():
        try:
            timings[name] = probe.run(attention)
        except Exception as error:  # a candidate may be anyone's code and fail in its own way
            logger.log(level, "attention kernel %s does not work here: %s", name, error)
    if not timings:
        raise EngineError(f"no attention kernel works on {probe.description}")
    fastest = min(timings, key=timings.__getitem__)
    logger.info(
        "attention kernel %s, of %s",
        fastest,
        ", ".join(f"{each} {seconds * 1e3:.2f} ms" for each, seconds in timings.items()),
    )
    return fastest, candidates[fastest]


class _Probe:
    """A step of decoding sequences and chunks of prompts over shuffled, partly poisoned pages:
    whoever reads a slot outside a context gets NaN."""

    def __init__(
        self,
        spec: ModelSpec,
        dtype: torch.dtype,
        kv_dtype: torch.dtype,
        device: torch.device,
        page_size: int,
    ) -> None:
        self.description = f"{device} with {dtype}"
        if kv_dtype != dtype:
            self.description += f" and pages of {kv_dtype}"
        self._spec, self._kv_dtype, self._device, self._page_size = (
            spec,
            kv_dtype,
            device,
            page_size,
        )
        generator = torch.Generator().manual_seed(0)
        sequences = _SEQUENCES if device.type == "cpu" else _GPU_SEQUENCES
        self._queries, self._contexts = zip(*sequences, strict=True)
        pages_per_sequence = -(-max(self._contexts) // page_size)
        self._tables = torch.randperm(
            len(self._contexts) * pages_per_sequence, generator=generator
        ).view(len(self._contexts), -1)

        def random(tokens: int, heads: int) -> torch.Tensor:
            numbers = torch.randn((tokens, heads, spec.head_dim), generator=generator)
            return numbers.to(device, dtype)

        self._query = random(sum(self._queries), spec.num_query_heads)
        self._keys = random(sum(self._contexts), spec.num_kv_heads)
        self._values = random(sum(self._contexts), spec.num_kv_heads)
        self._scale = spec.head_dim**-0.5
        exact = dtype if kv_dtype == torch.int8 else kv_dtype
        reference = self._prepare(Attention(reference_attention), exact)
        windows: tuple[int | None, ...] = (None, _WINDOW) if spec.windowed else (None,)
        self._expected = {window: reference(window).float() for window in windows}
        self._tolerance = _INT8_TOLERANCE if kv_dtype == torch.int8 else _TOLERANCE[dtype]

    def run(self, attention: Attention) -> float:
        """Seconds of the best of some warm calls: a busy machine must not decide. Raises ValueError
        where the kernel disagrees."""
        call = self._prepare(attention, self._kv_dtype)
        for window, expected in self._expected.items():
            difference = (call(window).float() - expected).abs().max().item()
            if not difference <= self._tolerance:
                where = "" if window is None else f" with a window of {window}"
                raise ValueError(f"differs from the reference by {difference}{where}")
        return min(_time(call) for _ in range(_PROBE_CALLS))

    def _prepare(
        self, attention: Attention, kv_dtype: torch.dtype
    ) -> Callable[[int | None], torch.Tensor]:
        """Fill pages of its own by the attention's writer; the call that reads them, given a
        window or none."""
        storage = PageStorage(
            num_layers=1,
            num_pages=self._tables.numel(),
            page_size=self._page_size,
            num_kv_heads=self._spec.num_kv_heads,
            head_dim=self._spec.head_dim,
            dtype=kv_dtype,
            device=self._device,
        )
        storage.poison()
        k_pages, v_pages = storage.layer(0)
        step = self._batch(storage, self._queries, torch.zeros(sum(self._queries)))
        every_slot = torch.cat([step.context_slots(i) for i in range(step.num_sequences)])
        filling = self._batch(storage, self._contexts, every_slot)
        attention.write(self._keys, self._values, k_pages, v_pages, filling)

        def call(window: int | None) -> torch.Tensor:
            output = attention.attend(self._query, k_pages, v_pages, step, self._scale, window)
            if output.device.type == "cuda":
                torch.cuda.synchronize(output.device)
            return output

        return call

    def _batch(
        self, storage: PageStorage, queries: tuple[int, ...], slots: torch.Tensor
    ) -> PagedBatch:
        return PagedBatch(
            storage=storage,
            slots=slots.to(self._device, torch.int64),
            page_tables=self._tables.to(self._device),
            query_lens=queries,
            context_lens=self._contexts,
            page_size=self._page_size,
        )


def _time(call: Callable[[int | None], torch.Tensor]) -> float:
    start = time.perf_counter()
    call(None)
    return time.perf_counter() - start
