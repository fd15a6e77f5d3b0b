"""Steps that are staged, padded and recorded give the tokens that transformers gives."""

import pytest
import torch
from cuda_on_cpu import PADDING_PAGE, StandInRecorder, on_cuda_path, storage_like
from engine_harness import PAGE_SIZE, Harness, cold, random_prompt

from engine.build import LoadedEngine
from engine.cuda.decode_graphs import graph_sizes
from engine.step_inputs import pack_step, place
from scheduler import SamplingParams, StepPlan


def test_recorded_steps_answer_as_transformers_does(loaded: LoadedEngine) -> None:
    recorder = StandInRecorder()
    engine, graphs = on_cuda_path(loaded, recorder)
    harness = Harness(engine)
    prompts = [random_prompt(length) for length in (1, 4, 5, 17, 40)]
    for i, prompt in enumerate(prompts):
        harness.add(str(i), prompt, 6 + 2 * i)
        harness.step()
    harness.drain()
    for i, prompt in enumerate(prompts):
        assert harness.tokens(str(i)) == cold(loaded, prompt, 6 + 2 * i)
    assert set(recorder.replays) <= set(graphs.sizes)
    assert recorder.recordings == len(set(recorder.replays))
    assert len(recorder.replays) >= 10, "most steps of these answers decode"


def test_choices_preemption_and_shared_prefixes_go_through_recorded_steps(
    llama: LoadedEngine,
) -> None:
    recorder = StandInRecorder()
    engine, _ = on_cuda_path(llama, recorder)
    prompts = [random_prompt(9, seed=seed) for seed in range(3)]
    params = SamplingParams(temperature=1.0, seed=5, n=2)

    def answers(loaded: LoadedEngine) -> list[list[int]]:
        harness = Harness(loaded, num_pages=14)
        for i, prompt in enumerate((*prompts, prompts[0])):
            harness.add(str(i), prompt, 12, params)
        harness.drain()
        assert harness.scheduler.stats.num_preemptions > 0
        return [harness.tokens(str(i), choice) for i in range(4) for choice in range(2)]

    assert answers(engine) == answers(llama)
    assert recorder.replays


def test_a_prompts_chunk_or_a_scored_prompt_is_not_replayed(llama: LoadedEngine) -> None:
    recorder = StandInRecorder()
    engine, _ = on_cuda_path(llama, recorder)
    harness = Harness(engine, budget=4)
    harness.add("decodes", random_prompt(3), 40)
    harness.step()
    harness.step()
    replayed = len(recorder.replays)
    assert replayed == 1
    harness.add("prefills", random_prompt(30), 1)
    harness.step()
    assert len(recorder.replays) == replayed
    scored = Harness(engine)
    scored.add("scored", random_prompt(2), 2, SamplingParams(temperature=0.0, prompt_logprobs=1))
    scored.step()
    assert len(recorder.replays) == replayed


def test_padding_touches_no_page_of_the_cache(llama: LoadedEngine) -> None:
    """Three sequences padded to four write what they write without padding, and nothing else."""
    engine, graphs = on_cuda_path(llama, StandInRecorder())
    plans: list[StepPlan] = []
    harness = Harness(engine, on_plan=plans.append)
    for i in range(3):
        harness.add(str(i), random_prompt(5 + i), 8)
    harness.step()
    storage, plain = engine.runner.storage, storage_like(llama.runner)
    plain.data.copy_(storage.data)
    harness.step()
    step = pack_step(plans[-1], PAGE_SIZE)
    assert graphs.covers(step) and step.num_sequences == 3
    with torch.inference_mode():
        engine.runner.forward(place(step, plain, PAGE_SIZE))
    assert not storage.data[:, :, PADDING_PAGE, 0].isnan().any()
    torch.testing.assert_close(
        storage.data[:, :, :PADDING_PAGE],
        plain.data[:, :, :PADDING_PAGE],
        rtol=1e-3,
        atol=1e-5,
        equal_nan=True,
    )


def test_all_sizes_can_be_recorded_ahead(llama: LoadedEngine) -> None:
    recorder = StandInRecorder()
    engine, graphs = on_cuda_path(llama, recorder)
    told: list[tuple[int, int]] = []
    graphs.record_all(lambda done, total: told.append((done, total)))
    total = len(graphs.sizes)
    assert told == [(done, total) for done in range(1, total + 1)]
    assert recorder.recordings == total
    assert Harness(engine).run("a", random_prompt(6), 9) == cold(llama, random_prompt(6), 9)
    assert recorder.recordings == total


@pytest.mark.parametrize("largest", [1, 2, 3, 8, 100, 256, 1000])
def test_sizes_waste_little_and_end_at_the_largest_batch(largest: int) -> None:
    sizes = graph_sizes(largest)
    assert sizes == sorted(set(sizes)) and sizes[-1] == largest and sizes[0] == 1
    for count in range(1, largest + 1):
        padded = next(size for size in sizes if size >= count)
        assert padded - count < max(8, padded // 4)
