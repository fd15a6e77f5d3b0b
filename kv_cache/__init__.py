"""Pages of keys and values: who holds them, what they contain, and when one must be copied.

Torch-free but for `kv_cache.storage`, which holds the tensors; nothing here imports a layer above.
"""

from kv_cache.manager import (
    CacheManager,
    CacheUsage,
    MissReason,
    PageCopy,
    PageFacts,
    PrefixReport,
)
from kv_cache.page_table import PageTable

__all__ = [
    "CacheManager",
    "CacheUsage",
    "MissReason",
    "PageCopy",
    "PageFacts",
    "PageTable",
    "PrefixReport",
]
