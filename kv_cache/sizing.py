"""How many pages the pool gets and how long a sequence may grow: decided once, at start.

Torch-free. The caller says what the model needs for one page and what memory is free; this module
settles what the user set and left open, or refuses. The invariant: the pool of a plan holds at
least one sequence of `max_model_len` tokens, so a request within the context can be served.
"""

from dataclasses import dataclass

MIN_PAGES = 2
MAX_DEFAULT_BYTES = 4 * 2**30


class CacheSizeError(ValueError):
    """The pool cannot be sized as asked; the message is one line with both numbers."""


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The pool's size and the longest sequence. `note` says in plain words how they came about."""

    num_pages: int
    bytes: int
    max_model_len: int
    note: str


def page_bytes(
    num_layers: int,
    num_kv_heads: int,
    head_dim: int,
    page_size: int,
    dtype_bytes: int,
    scale_bytes: int = 0,
) -> int:
    """Bytes of one page: keys and values of `page_size` tokens in all layers, and `scale_bytes`
    beside each head of each of them."""
    return 2 * num_layers * num_kv_heads * page_size * (head_dim * dtype_bytes + scale_bytes)


def plan_pages(
    *,
    bytes_per_page: int,
    page_size: int,
    model_max_len: int,
    available_bytes: int,
    max_model_len: int | None = None,
    num_pages: int | None = None,
    kv_cache_memory_bytes: int | None = None,
    default_bytes: int | None = None,
) -> CachePlan:
    """Settle the pool's pages and the longest sequence.

    `available_bytes` is what may still be allocated once the weights are loaded. The size comes
    from `num_pages`, or `kv_cache_memory_bytes`, or `default_bytes` (without it: half of what is
    available, at most 4 GiB). Without `max_model_len` it is the model's own, or less where the
    pool holds less. Raises `CacheSizeError` for a size that is not available, for a pool below
    `MIN_PAGES`, and for a `max_model_len` beyond the model's or the pool's.
    """
    _check_positive(
        page_size=page_size,
        max_model_len=max_model_len,
        num_pages=num_pages,
        kv_cache_memory_bytes=kv_cache_memory_bytes,
    )
    num_pages, origin = _choose_num_pages(
        bytes_per_page, available_bytes, num_pages, kv_cache_memory_bytes, default_bytes
    )
    num_bytes = num_pages * bytes_per_page
    if num_bytes > available_bytes:
        raise CacheSizeError(
            f"a KV cache of {num_pages} pages takes {_size(num_bytes)} and "
            f"{_size(available_bytes)} are free: lower {origin}"
        )
    if num_pages < MIN_PAGES:
        raise CacheSizeError(
            f"the KV cache needs at least {MIN_PAGES} pages of {_size(bytes_per_page)} and has "
            f"room for {num_pages} ({origin}): free memory, or raise kv_cache_memory_bytes or "
            "num_pages"
        )
    num_slots = num_pages * page_size
    length, reason = _choose_max_model_len(max_model_len, model_max_len, num_slots, page_size)
    return CachePlan(
        num_pages=num_pages,
        bytes=num_bytes,
        max_model_len=length,
        note=(
            f"the KV cache takes {_size(num_bytes)}, from {origin}; max_model_len {length}, "
            f"{reason}"
        ),
    )


def _choose_num_pages(
    bytes_per_page: int,
    available_bytes: int,
    num_pages: int | None,
    kv_cache_memory_bytes: int | None,
    default_bytes: int | None,
) -> tuple[int, str]:
    """The number of pages and where it comes from."""
    if num_pages is not None and kv_cache_memory_bytes is not None:
        raise CacheSizeError(
            f"num_pages ({num_pages}) and kv_cache_memory_bytes ({kv_cache_memory_bytes}) both set "
            "the size of the KV cache: give one of them"
        )
    if num_pages is not None:
        return num_pages, "num_pages"
    if kv_cache_memory_bytes is not None:
        return kv_cache_memory_bytes // bytes_per_page, "kv_cache_memory_bytes"
    if default_bytes is not None:
        share = min(default_bytes, available_bytes)
        return max(0, share) // bytes_per_page, f"{_size(share)} set aside for it"
    if available_bytes // 2 > MAX_DEFAULT_BYTES:
        return MAX_DEFAULT_BYTES // bytes_per_page, f"the default of {_size(MAX_DEFAULT_BYTES)}"
    return available_bytes // 2 // bytes_per_page, f"half of the {_size(available_bytes)} free"


def _choose_max_model_len(
    asked: int | None, model_max_len: int, num_slots: int, page_size: int
) -> tuple[int, str]:
    """The longest sequence, prompt and answer together, and why."""
    if asked is None:
        if num_slots < model_max_len:
            return num_slots, f"what the pool holds (the model allows {model_max_len})"
        return model_max_len, "the model's"
    if asked > model_max_len:
        raise CacheSizeError(
            f"max_model_len {asked} exceeds the {model_max_len} tokens that the model allows"
        )
    if asked > num_slots:
        needed = -(-asked // page_size)
        raise CacheSizeError(
            f"max_model_len {asked} needs {needed} pages and the KV cache has "
            f"{num_slots // page_size} ({num_slots} tokens): lower max_model_len to {num_slots}, "
            "or raise kv_cache_memory_bytes or num_pages"
        )
    return asked, "as asked"


def _check_positive(**settings: int | None) -> None:
    for name, value in settings.items():
        if value is not None and value < 1:
            raise CacheSizeError(f"{name} must be at least 1, got {value}")


def _size(num_bytes: int) -> str:
    """Bytes for people: 2.0 GiB, 37 MiB, 480 KiB."""
    if num_bytes >= 2**30:
        return f"{num_bytes / 2**30:.1f} GiB"
    if num_bytes >= 2**20:
        return f"{num_bytes / 2**20:.0f} MiB"
    return f"{num_bytes / 2**10:.0f} KiB"
