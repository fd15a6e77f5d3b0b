"""The tensors: views of a layer and copies of whole pages."""

import pytest
import torch

from kv_cache import PageCopy
from kv_cache.storage import PageStorage

NUM_LAYERS, NUM_PAGES = 3, 5


@pytest.fixture
def storage():
    """Every value says which layer, K or V and page it was written to."""
    storage = PageStorage(
        num_layers=NUM_LAYERS,
        num_pages=NUM_PAGES,
        page_size=4,
        num_kv_heads=2,
        head_dim=8,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    for layer in range(NUM_LAYERS):
        for kind, pages in enumerate(storage.layer(layer)):
            for page in range(NUM_PAGES):
                pages[page] = label(layer, kind, page)
    return storage


def label(layer, kind, page):
    return float(100 * layer + 10 * kind + page)


def contents(storage):
    """For each page the page whose label it carries, checked to be the same in all its places."""
    found = []
    for page in range(NUM_PAGES):
        values = {
            value - label(layer, kind, 0)
            for layer in range(NUM_LAYERS)
            for kind, pages in enumerate(storage.layer(layer))
            for value in pages[page].flatten().tolist()
        }
        assert len(values) == 1, f"page {page} holds a mixture: {values}"
        found.append(int(values.pop()))
    return found


def test_a_layer_has_its_own_keys_and_values(storage):
    keys, values = storage.layer(1)
    assert keys.shape == values.shape == (NUM_PAGES, 4, 2, 8)
    assert contents(storage) == [0, 1, 2, 3, 4]


def test_the_size_counts_keys_and_values_of_all_layers(storage):
    assert storage.num_bytes == NUM_LAYERS * 2 * NUM_PAGES * 4 * 2 * 8 * 4


def test_a_copy_covers_all_layers_and_leaves_the_source_alone(storage):
    storage.copy_pages([PageCopy(source=1, target=3)])
    assert contents(storage) == [0, 1, 2, 1, 4]


def test_every_source_is_read_before_any_target_is_written(storage):
    # Page 1 is copied away and at once a target itself; 2 and 3 change places.
    storage.copy_pages(
        [PageCopy(0, 1), PageCopy(1, 4), PageCopy(2, 3), PageCopy(3, 2)],
    )
    assert contents(storage) == [0, 0, 3, 2, 1]


def test_one_source_may_go_to_several_targets(storage):
    storage.copy_pages([PageCopy(0, 1), PageCopy(0, 2)])
    assert contents(storage) == [0, 0, 0, 3, 4]


def test_no_copies_change_nothing(storage):
    storage.copy_pages([])
    assert contents(storage) == [0, 1, 2, 3, 4]


def test_whoever_holds_a_layer_sees_copies(storage):
    keys, values = storage.layer(2)
    storage.copy_pages([PageCopy(0, 4)])
    assert keys[4, 0, 0, 0] == label(2, 0, 0)
    assert values[4, 0, 0, 0] == label(2, 1, 0)
