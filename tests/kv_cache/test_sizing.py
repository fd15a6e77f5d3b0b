import pytest

from kv_cache.sizing import MAX_DEFAULT_BYTES, CacheSizeError, page_bytes, plan_pages

MIB = 2**20
GIB = 2**30


def plan(**changes):
    settings = {
        "bytes_per_page": MIB,
        "page_size": 16,
        "model_max_len": 8192,
        "available_bytes": GIB,
    }
    return plan_pages(**settings | changes)


def test_a_page_holds_the_keys_and_values_of_all_layers():
    # SmolLM2-135M in bfloat16: 2 * 30 layers * 3 heads * 64 * 16 tokens * 2 bytes.
    assert page_bytes(30, 3, 64, 16, 2) == 368_640


def test_by_default_half_of_the_free_memory_is_used():
    sized = plan(available_bytes=100 * MIB)
    assert (sized.num_pages, sized.bytes) == (50, 50 * MIB)
    assert "half of the 100 MiB free" in sized.note


def test_by_default_no_more_than_four_gib_are_used():
    sized = plan(available_bytes=100 * GIB)
    assert sized.bytes == MAX_DEFAULT_BYTES == 4 * GIB
    assert "the default of 4.0 GiB" in sized.note


def test_a_default_of_the_device_replaces_the_general_one():
    assert plan(default_bytes=900 * MIB).num_pages == 900


def test_a_default_larger_than_what_is_free_is_cut_to_it():
    assert plan(default_bytes=2 * GIB).num_pages == 1024


def test_num_pages_is_taken_as_it_is():
    assert plan(num_pages=700).num_pages == 700


def test_memory_bytes_are_rounded_down_to_whole_pages():
    sized = plan(kv_cache_memory_bytes=10 * MIB - 1)
    assert (sized.num_pages, sized.bytes) == (9, 9 * MIB)


def test_the_context_is_the_models_where_the_pool_holds_it():
    assert plan(num_pages=512, model_max_len=8192).max_model_len == 8192


def test_the_context_shrinks_to_what_the_pool_holds_and_the_note_says_so():
    sized = plan(num_pages=511, model_max_len=8192)
    assert sized.max_model_len == 511 * 16
    assert "what the pool holds (the model allows 8192)" in sized.note


def test_a_context_asked_for_is_kept():
    assert plan(num_pages=512, max_model_len=1000).max_model_len == 1000


def test_a_context_that_just_fits_the_pool_is_accepted():
    assert plan(num_pages=10, max_model_len=160).max_model_len == 160


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_pages": 10, "max_model_len": 161}, r"161 needs 11 pages .* has 10 \(160 tokens\)"),
        ({"max_model_len": 8193}, "8193 exceeds the 8192 tokens"),
        ({"num_pages": 1}, r"needs at least 2 pages .* room for 1 \(num_pages\)"),
        ({"available_bytes": 3 * MIB}, r"room for 1 \(half of the 3 MiB free\)"),
        ({"available_bytes": 0}, "room for 0 "),
        ({"kv_cache_memory_bytes": MIB}, r"room for 1 \(kv_cache_memory_bytes\)"),
        ({"default_bytes": -5}, "room for 0 "),
        ({"num_pages": 2000}, r"takes 2.0 GiB and 1.0 GiB are free: lower num_pages"),
        ({"kv_cache_memory_bytes": 2 * GIB}, "takes 2.0 GiB .* lower kv_cache_memory_bytes"),
        ({"num_pages": 5, "kv_cache_memory_bytes": 5 * MIB}, "give one of them"),
        ({"num_pages": 0}, "num_pages must be at least 1, got 0"),
        ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes must be at least 1, got -1"),
        ({"max_model_len": 0}, "max_model_len must be at least 1, got 0"),
        ({"page_size": 0}, "page_size must be at least 1, got 0"),
    ],
)
def test_impossible_sizes_are_refused_with_the_numbers(changes, message):
    with pytest.raises(CacheSizeError, match=message):
        plan(**changes)
