"""Whatever way a request is served, its greedy tokens are those of transformers' cold generate."""

import random

import pytest
from engine_harness import PAGE_SIZE, Harness, cold, random_prompt

from engine.build import LoadedEngine
from scheduler import SamplingParams

pytestmark = pytest.mark.usefixtures("poison")
P = PAGE_SIZE


def test_prompts_of_mixed_lengths_together(loaded: LoadedEngine) -> None:
    harness = Harness(loaded)
    prompts = [random_prompt(length) for length in (1, 2, P - 1, P, P + 1, 3 * P, 17, 40)]
    for i, prompt in enumerate(prompts):
        harness.add(str(i), prompt, 12)
    harness.drain()
    for i, prompt in enumerate(prompts):
        assert harness.tokens(str(i)) == cold(loaded, prompt, 12)
    harness.assert_idle()


@pytest.mark.parametrize("budget", [1, 2, 3, P, P + 1, 16, 37, 64])
def test_prefill_in_chunks_of_any_size(loaded: LoadedEngine, budget: int) -> None:
    prompt = random_prompt(37)
    assert Harness(loaded, budget=budget).run("a", prompt, 6) == cold(loaded, prompt, 6)


@pytest.mark.parametrize("budget", [3, P, P + 1, 16])
def test_a_chunked_prefill_beside_decoding_neighbours(loaded: LoadedEngine, budget: int) -> None:
    harness = Harness(loaded, budget=budget)
    neighbours = [random_prompt(length, seed=1) for length in (3, 6)]
    for i, prompt in enumerate(neighbours):
        harness.add(f"neighbour {i}", prompt, 20)
    while not harness.events:
        harness.step()
    harness.add("late", random_prompt(37), 8)
    harness.drain()
    assert harness.tokens("late") == cold(loaded, random_prompt(37), 8)
    for i, prompt in enumerate(neighbours):
        assert harness.tokens(f"neighbour {i}") == cold(loaded, prompt, 20)


@pytest.mark.parametrize("caching", [True, False])
def test_the_same_prompt_three_times(loaded: LoadedEngine, caching: bool) -> None:
    for length in range(1, 4 * P + 1):
        harness = Harness(loaded, caching=caching)
        prompt = random_prompt(length)
        for turn in range(3):
            assert harness.run(str(turn), prompt, 2 * P) == cold(loaded, prompt, 2 * P)
            # All but the last token, as far as whole pages were filled: the answer's pages count.
            filled = (length + 2 * P - 1) // P * P
            warm = min(length - 1, filled) if caching and turn else 0
            assert harness.cached(str(turn)) == warm
        harness.assert_idle()


def test_prompts_that_part_at_every_position(loaded: LoadedEngine) -> None:
    donor = random_prompt(3 * P + 2)
    for shared in range(len(donor)):
        harness = Harness(loaded)
        other = donor[:shared] + tuple(token + 1 for token in random_prompt(9, seed=shared))
        harness.run("donor", donor, 4)
        assert harness.run("other", other, 8) == cold(loaded, other, 8)
        assert harness.cached("other") == min(shared, len(donor) // P * P + P)
        assert harness.run("donor again", donor, 8) == cold(loaded, donor, 8)


def test_sharing_with_a_request_that_is_still_running(loaded: LoadedEngine) -> None:
    harness = Harness(loaded)
    first = random_prompt(3 * P)
    harness.add("first", first, 24)
    for _ in range(6):
        harness.step()
    second = first[: 2 * P + 1] + random_prompt(5, seed=3)
    harness.add("second", second, 12)
    harness.drain()
    assert harness.tokens("first") == cold(loaded, first, 24)
    assert harness.tokens("second") == cold(loaded, second, 12)
    assert (harness.cached("second") or 0) > 2 * P


@pytest.mark.parametrize("length", [2 * P, 2 * P + 2])
def test_forked_choices(loaded: LoadedEngine, length: int) -> None:
    harness = Harness(loaded)
    prompt = random_prompt(length)
    harness.add("a", prompt, 3 * P, SamplingParams(temperature=0.0, n=3))
    harness.drain()
    for choice in range(3):
        assert harness.tokens("a", choice) == cold(loaded, prompt, 3 * P)
    harness.assert_idle()


def test_two_that_fit_alone_but_not_together(loaded: LoadedEngine) -> None:
    length, answer = P, 6 * P
    pages = -(-(length + answer - 1) // P)
    harness = Harness(loaded, num_pages=pages + 1)
    prompts = [random_prompt(length, seed=seed) for seed in range(2)]
    for i, prompt in enumerate(prompts):
        harness.add(str(i), prompt, answer)
    harness.drain()
    for i, prompt in enumerate(prompts):
        assert harness.tokens(str(i)) == cold(loaded, prompt, answer)
    assert 0 < harness.scheduler.stats.num_preemptions < answer
    harness.assert_idle()


def test_the_smallest_pool_that_holds_the_request(loaded: LoadedEngine) -> None:
    prompt = random_prompt(2 * P + 1)
    harness = Harness(loaded, num_pages=-(-(len(prompt) + 3 * P - 1) // P))
    for turn in range(2):
        assert harness.run(str(turn), prompt, 3 * P) == cold(loaded, prompt, 3 * P)


def test_equal_prompts_that_start_together_survive_a_flood(loaded: LoadedEngine) -> None:
    """Both compute the same pages; the copy that is given up must not stay in a live table."""
    harness = Harness(loaded, num_pages=40)
    twin = random_prompt(3 * P)
    harness.add("twin 0", twin, 4 * P)
    harness.add("twin 1", twin, 4 * P)
    for i in range(12):
        harness.step()
        harness.add(f"flood {i}", random_prompt(2 * P + 1, seed=100 + i), 2)
    harness.drain()
    for i in range(2):
        assert harness.tokens(f"twin {i}") == cold(loaded, twin, 4 * P)
    harness.assert_idle()


@pytest.mark.parametrize("seed", range(4))
def test_random_company(loaded: LoadedEngine, seed: int) -> None:
    """Shared prefixes, late arrivals, aborts, a pool that is too small, tiny budgets."""
    rng = random.Random(seed)
    harness = Harness(loaded, num_pages=rng.randint(14, 30), budget=rng.randint(3, 30))
    family = random_prompt(20, seed=seed)
    prompts = [
        family[: rng.randint(1, 20)] + random_prompt(rng.randint(0, 6), seed=i) for i in range(24)
    ]
    aborted = set(rng.sample(range(24), 5))
    for i, prompt in enumerate(prompts):
        harness.add(str(i), prompt, 10)
        for _ in range(rng.randint(0, 3)):
            harness.step()
        if i in aborted:
            harness.scheduler.abort(str(i))
    harness.drain()
    for i in set(range(24)) - aborted:
        assert harness.tokens(str(i)) == cold(loaded, prompts[i], 10)
    harness.assert_idle()
