"""Attention over pages: the batch's geometry, the kernels, and the choice among them."""

from engine.attention.batch import PagedBatch
from engine.attention.interface import ATTENTION_NAME, register_attention
from engine.attention.select import KERNELS, Kernel, select_kernel

__all__ = [
    "ATTENTION_NAME",
    "KERNELS",
    "Kernel",
    "PagedBatch",
    "register_attention",
    "select_kernel",
]
