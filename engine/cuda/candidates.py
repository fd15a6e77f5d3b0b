"""What there is to choose from on a CUDA device: attention kernels and writers of pages.

Called once at start. `engine.attention.select_kernel` probes the kernels; the writers of pages are
tried here, in the same spirit: what does not do as torch does is not used.
"""

import importlib.util
import logging
from collections.abc import Mapping

import torch

from engine.attention import KERNELS, Kernel
from kv_cache.storage import PageKernels, PageStorage, TorchPageKernels

logger = logging.getLogger(__name__)


def cuda_kernels(device: torch.device, *, deterministic: bool) -> Mapping[str, Kernel]:
    """Attention kernels by name, those that cannot even be imported left out.

    With `deterministic` only the one whose results do not depend on the batch. Raises `ImportError`
    where there is none.
    """
    num_sms = torch.cuda.get_device_properties(device).multi_processor_count
    if deterministic:
        return {"triton": _triton_attention(num_sms, deterministic=True)}
    from engine.cuda.varlen import varlen_attention

    kernels: dict[str, Kernel] = {**KERNELS, "varlen": varlen_attention}
    if _has("triton"):
        kernels["triton"] = _triton_attention(num_sms, deterministic=False)
    if _has("flashinfer"):
        from engine.cuda.flash_infer import FlashInferAttention

        kernels["flashinfer"] = FlashInferAttention(device)
    return kernels


def page_kernels(device: torch.device, dtype: torch.dtype) -> PageKernels:
    """Triton's writers of pages where they work, else torch's."""
    if not _has("triton"):
        return TorchPageKernels()
    from engine.cuda.triton_attention import TritonPageKernels

    kernels = TritonPageKernels()
    try:
        if all(
            torch.equal(ours, theirs)
            for ours, theirs in zip(
                _write_and_copy(kernels, device, dtype),
                _write_and_copy(TorchPageKernels(), device, dtype),
                strict=True,
            )
        ):
            return kernels
        logger.warning("Triton's writers of pages differ from torch's: the latter are used")
    except (RuntimeError, ValueError) as error:
        logger.warning("Triton's writers of pages do not work here: %s", error)
    return TorchPageKernels()


def _triton_attention(num_sms: int, *, deterministic: bool) -> Kernel:
    from engine.cuda.triton_attention import TritonAttention

    return TritonAttention(num_sms=num_sms, deterministic=deterministic)


def _write_and_copy(
    kernels: PageKernels, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """All pages of a small storage after new tokens and two copies."""
    storage = PageStorage(
        num_layers=2,
        num_pages=6,
        page_size=16,
        num_kv_heads=3,
        head_dim=80,
        dtype=dtype,
        device=device,
        kernels=kernels,
    )
    storage.data.zero_()
    new = torch.arange(2 * 3 * 3 * 80, device=device).view(2, 3, 3, 80).transpose(1, 2)
    slots = torch.tensor([3, 64, 17], device=device)
    storage.write(1, slots, new[0].to(dtype), new[1].to(dtype))
    pages = torch.tensor([[0, 4], [2, 5]], device=device)
    kernels.copy(storage.data, pages[0], pages[1])
    return tuple(storage.data)


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
