"""Attention over pages: the batch's geometry, the kernels, and the choice among them."""

from engine.attention.batch import PagedBatch
from engine.attention.interface import ATTENTION_NAME, register_attention
from engine.attention.kernel import Attention, Kernel
from engine.attention.select import KERNELS, select_kernel

__all__ = [
    "ATTENTION_NAME",
    "KERNELS",
    "Attention",
    "Kernel",
    "PagedBatch",
    "register_attention",
    "select_kernel",
]
