"""What there is to choose from on a CUDA device: ways to attend, and to copy pages.

Called once at start. `engine.attention.select_kernel` probes the former; the copier is tried here,
in the same spirit: what does not do as torch does is not used.
"""

import importlib.util
import logging
from collections.abc import Mapping

import torch

from engine.attention import KERNELS, Attention, Kernel
from engine.config import EngineError
from kv_cache.storage import PageCopier, index_copy

logger = logging.getLogger(__name__)

TRITON = "triton"


def cuda_attention(
    device: torch.device, *, deterministic: bool
) -> Mapping[str, Kernel | Attention]:
    """Candidates by name, those that cannot even be imported left out.

    With `deterministic` only the one whose results do not depend on the batch. Raises `EngineError`
    where there is none.
    """
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    candidates: dict[str, Kernel | Attention] = {}
    if has("triton"):
        from engine.cuda.triton_attention import TritonAttention, write_pages

        kernel = TritonAttention(num_sms=num_sms, deterministic=deterministic)
        candidates[TRITON] = Attention(kernel, write_pages)
    if deterministic:
        if not candidates:
            raise EngineError("--deterministic needs Triton on a GPU: pip install 'octavo[cuda]'")
        return candidates
    from engine.cuda.varlen import varlen_attention

    candidates |= {**KERNELS, "varlen": varlen_attention}
    if has("flashinfer"):
        from engine.cuda.flash_infer import FlashInferAttention

        candidates["flashinfer"] = FlashInferAttention(device)
    return candidates


def page_copier(device: torch.device, dtype: torch.dtype) -> PageCopier:
    """Triton's copy of pages where it works, else torch's."""
    if not has("triton"):
        return index_copy
    from engine.cuda.triton_attention import copy_pages

    data = torch.arange(2 * 2 * 6 * 16 * 3 * 8, device=device).to(dtype).view(2, 2, 6, 16, 3, 8)
    expected = data.clone()
    sources, targets = torch.tensor([[0, 4], [2, 5]], device=device)
    index_copy(expected, sources, targets)
    try:
        copy_pages(data, sources, targets)
    except Exception as error:  # of the compiler, the driver, the operating system
        logger.warning("Triton's copy of pages does not work here: %s", error)
        return index_copy
    if not torch.equal(data, expected):
        logger.warning("Triton's copy of pages differs from torch's, which is used")
        return index_copy
    return copy_pages


def has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
