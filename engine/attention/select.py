"""Chooses the attention kernel: every candidate is run once on random pages against the reference,
and the fastest that agrees is taken.
"""

import logging
import time
from collections.abc import Mapping
from types import MappingProxyType

import torch

from engine.attention.batch import PagedBatch
from engine.attention.gathered import gathered_attention
from engine.attention.kernel import Attention, Kernel
from engine.attention.reference import reference_attention
from engine.config import EngineError
from engine.loading import ModelSpec
from kv_cache.storage import PageStorage

logger = logging.getLogger(__name__)

_PROBE_CALLS = 5


KERNELS: Mapping[str, Kernel] = MappingProxyType(
    {"reference": reference_attention, "gathered": gathered_attention}
)

# Largest difference from the float32 reference: a few units in the last place of the dtype, for
# values near 1 (weighted means of standard normal ones).
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}


def select_kernel(
    name: str,
    *,
    spec: ModelSpec,
    dtype: torch.dtype,
    device: torch.device,
    page_size: int,
    kernels: Mapping[str, Kernel | Attention] = KERNELS,
) -> tuple[str, Attention]:
    """The attention called `name`, or with `auto` the fastest one that agrees with the reference.

    Raises `EngineError` for an unknown name, or one that fails on this device or disagrees.
    """
    if name != "auto" and name not in kernels:
        raise EngineError(f"attention {name!r} is unknown; there are: auto, {', '.join(kernels)}")
    candidates = {
        each: kernel if isinstance(kernel, Attention) else Attention(kernel)
        for each, kernel in kernels.items()
        if name in ("auto", each)
    }
    probe = _Probe(spec, dtype, device, page_size)
    timings: dict[str, float] = {}
    for candidate, attention in candidates.items():
        try:
            timings[candidate] = probe.run(attention.attend)
        except Exception as error:  # a candidate may be anyone's code and fail in its own way
            level = logging.INFO if name == "auto" else logging.WARNING
            logger.log(level, "attention kernel %s does not work here: %s", candidate, error)
    if not timings:
        raise EngineError(f"no attention kernel works on {device} with {dtype}")
    fastest = min(timings, key=timings.__getitem__)
    logger.info(
        "attention kernel %s, of %s",
        fastest,
        ", ".join(f"{each} {seconds * 1e3:.2f} ms" for each, seconds in timings.items()),
    )
    return fastest, candidates[fastest]


class _Probe:
    """A step of eight decoding sequences and one prefill chunk over shuffled, partly poisoned
    pages: whoever reads a slot outside a context gets NaN."""

    def __init__(
        self, spec: ModelSpec, dtype: torch.dtype, device: torch.device, page_size: int
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        contexts = (1, 15, 16, 17, 100, 200, 255, 256, 120)
        queries = (1,) * 8 + (50,)
        pages_per_sequence = -(-max(contexts) // page_size)
        num_pages = len(contexts) * pages_per_sequence
        tables = torch.randperm(num_pages, generator=generator).view(len(contexts), -1)
        storage = PageStorage(
            num_layers=1,
            num_pages=num_pages,
            page_size=page_size,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=dtype,
            device=device,
        )
        self._k_pages, self._v_pages = storage.layer(0)
        self._batch = PagedBatch(
            storage=storage,
            slots=torch.zeros(sum(queries), dtype=torch.int64, device=device),
            page_tables=tables.to(device),
            query_lens=queries,
            context_lens=contexts,
            page_size=page_size,
        )
        for pages in (self._k_pages, self._v_pages):
            pages.fill_(float("nan"))
            for i in range(len(contexts)):
                slots = self._batch.context_slots(i)
                content = torch.randn((len(slots), *pages.shape[2:]), generator=generator)
                pages.flatten(0, 1)[slots] = content.to(device, dtype)
        shape = (sum(queries), spec.num_query_heads, spec.head_dim)
        self._query = torch.randn(shape, generator=generator).to(device, dtype)
        self._scale = spec.head_dim**-0.5
        self._expected = self._call(reference_attention)

    def run(self, kernel: Kernel) -> float:
        """Seconds of the best of some warm calls: a busy machine must not decide. Raises ValueError
        where the kernel disagrees."""
        difference = (self._call(kernel).float() - self._expected.float()).abs().max().item()
        if not difference <= _TOLERANCE[self._query.dtype]:
            raise ValueError(f"differs from the reference by {difference}")
        return min(self._time(kernel) for _ in range(_PROBE_CALLS))

    def _time(self, kernel: Kernel) -> float:
        start = time.perf_counter()
        self._call(kernel)
        return time.perf_counter() - start

    def _call(self, kernel: Kernel) -> torch.Tensor:
        output = kernel(self._query, self._k_pages, self._v_pages, self._batch, self._scale, None)
        if output.device.type == "cuda":
            torch.cuda.synchronize(output.device)
        return output
