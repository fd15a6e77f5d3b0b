"""Step-time models: from data sheets, from fits, to files and back."""

import random

import pytest

from scheduler.simulation.devices import DEVICES, Efficiency, pages_that_fit, step_time_of
from scheduler.simulation.fit import LoggedStep, fit_steps
from scheduler.simulation.least_squares import nonnegative_least_squares
from scheduler.simulation.shapes import KNOWN_SHAPES, ShapeError, shape_from_config
from scheduler.simulation.step_time import StepTimeModel, StepWork, model_from_json

LLAMA = KNOWN_SHAPES["llama-3.1-8b"]
IDEAL = Efficiency(bandwidth=1.0, flops=1.0, overhead=0.0)


def decode(sequences, context):
    return StepWork(sequences, sequences, sequences, sequences * context, 0)


def test_shapes_come_to_the_published_sizes():
    billions = {name: shape.num_parameters / 1e9 for name, shape in KNOWN_SHAPES.items()}
    published = {"llama-2-7b": 6.74, "llama-3.1-8b": 8.03, "llama-2-70b": 69.0, "qwen3-8b": 8.19}
    for name, size in published.items():
        assert billions[name] == pytest.approx(size, rel=0.005)
    assert KNOWN_SHAPES["llama-2-7b"].kv_bytes_per_token("float16") == 2**19


def test_a_lone_decode_step_reads_the_weights_and_the_cache_once():
    device = DEVICES["h100"]
    model = step_time_of(device, LLAMA, "bfloat16", "bfloat16", IDEAL)
    weights = 2 * (LLAMA.body_parameters + LLAMA.head_parameters)
    cache = 1000 * LLAMA.kv_bytes_per_token("bfloat16")
    seconds = (weights + cache) / device.bandwidth
    assert model.seconds(decode(1, 1000)) == pytest.approx(seconds, rel=0.001)


def test_a_long_prefill_is_arithmetic():
    device = DEVICES["h100"]
    model = step_time_of(device, LLAMA, "bfloat16", "bfloat16", IDEAL)
    work = StepWork(8192, 1, 1, 8192, 0)
    flops = 2 * 8192 * LLAMA.body_parameters
    assert model.seconds(work) == pytest.approx(flops / device.flops, rel=0.05)


def test_a_model_without_room_is_refused_with_its_sizes():
    with pytest.raises(ValueError, match=r"llama-2-70b in bfloat16 has 138\.\d GB .* h100 69\.9"):
        pages_that_fit(
            DEVICES["h100"], KNOWN_SHAPES["llama-2-70b"], "bfloat16", "bfloat16", 16, Efficiency()
        )


def test_the_curve_is_level_then_rises_between_its_points_and_beyond():
    model = StepTimeModel(overhead=0.0, matrix=((8, 1.0), (16, 2.0), (32, 6.0)))
    assert [model.matrix_seconds(count) for count in (1, 8, 12, 16, 24, 64)] == [
        1.0, 1.0, 1.5, 2.0, 4.0, 14.0,
    ]  # fmt: skip


def test_a_file_gives_the_model_back():
    model = step_time_of(DEVICES["l4"], LLAMA, "bfloat16", "bfloat16", Efficiency())
    assert model_from_json(model.to_json()) == model


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "[]",
        "nonsense",
        '{"overhead": 1}',
        '{"overhead": -1, "matrix": [[1, 1]]}',
        '{"overhead": 1, "matrix": [[2, 1], [1, 1]]}',
    ],
)
def test_what_is_no_model_is_refused(text):
    with pytest.raises(ValueError):
        model_from_json(text)


def logged(model, count, *, noise, gap=None):
    """Steps of a mixed load, as a server with these costs would log them."""
    chance = random.Random(3)
    steps = []
    for _ in range(count):
        running, context = chance.choice((1, 4, 16, 60)), chance.randint(10, 900)
        chunk, before = chance.choice(((0, 0), (0, 0), (60, 0), (500, 0), (300, 700)))
        work = StepWork(
            tokens=running + chunk,
            sequences=running + bool(chunk),
            samples=running + bool(chunk),
            context=running * context + before + chunk,
            pairs=chunk * before + chunk * (chunk + 1) // 2,
            mixed_context=running * context if chunk else 0,
        )
        steps.append(LoggedStep(work, model.seconds(work) * chance.gauss(1, noise), gap))
    return steps


def test_a_fit_predicts_steps_it_never_saw():
    model = step_time_of(DEVICES["l4"], LLAMA, "bfloat16", "bfloat16", Efficiency())
    fit = fit_steps(logged(model, 600, noise=0.05), "test")
    assert abs(fit.total_error) < 0.03
    assert fit.median_error < 0.08 < fit.constant_error
    for work in (decode(8, 300), decode(40, 500), StepWork(400, 5, 5, 2000, 80_000)):
        assert fit.model.seconds(work) == pytest.approx(model.seconds(work), rel=0.1)


def test_a_fit_tells_what_decodes_cost_more_beside_a_prompt():
    model = StepTimeModel(
        overhead=0.005,
        matrix=((1, 0.0), (1024, 0.05)),
        per_context_token=1e-7,
        per_mixed_context=2e-7,
    )
    fit = fit_steps(logged(model, 600, noise=0.02), "test")
    assert fit.model.per_mixed_context == pytest.approx(2e-7, rel=0.2)
    assert model_from_json(fit.model.to_json()) == fit.model


def test_a_size_that_few_steps_had_does_not_follow_their_noise():
    model = StepTimeModel(overhead=0.02, matrix=((1, 0.0), (512, 0.512)))

    def chunk(tokens):
        return StepWork(tokens, 1, 1, tokens, 0)

    sizes = (1, 4, 16, 60, 500) * 12
    steps = [LoggedStep(chunk(size), model.seconds(chunk(size)), None) for size in sizes]
    steps += [LoggedStep(chunk(130), 2 * model.seconds(chunk(130)), None)] * 2
    fit = fit_steps(steps, "test")
    for size in (16, 100, 130, 200, 500):
        found, true = fit.model.seconds(chunk(size)), model.seconds(chunk(size))
        assert found == pytest.approx(true, rel=0.3)


def test_gaps_between_steps_are_part_of_them():
    model = StepTimeModel(overhead=0.02, matrix=((1, 0.0), (512, 0.1)))
    fit = fit_steps(logged(model, 300, noise=0.0, gap=0.005), "test")
    assert fit.model.seconds(decode(4, 100)) == pytest.approx(
        model.seconds(decode(4, 100)) + 0.005, rel=0.02
    )


def test_logs_that_teach_nothing_are_refused():
    model = StepTimeModel(overhead=0.02, matrix=((1, 0.0), (512, 0.1)))
    with pytest.raises(ValueError, match="at least 50 steps, the log has 20"):
        fit_steps(logged(model, 20, noise=0.0), "test")
    with pytest.raises(ValueError, match="all steps of the log are alike"):
        fit_steps([LoggedStep(decode(4, 100), 0.1, None)] * 90, "test")


def test_costs_are_never_negative_and_right_where_they_can_be_told():
    chance = random.Random(4)
    truth = [2.0, 0.0, 5.0]
    rows = []
    for _ in range(200):
        row = [1.0, chance.random(), chance.random()]
        value = sum(a * b for a, b in zip(row, truth, strict=True)) - 0.3 * row[1]
        rows.append((row, value, 1.0))
    solution = nonnegative_least_squares(rows, 3)
    assert min(solution) >= 0
    assert solution[1] == 0
    assert solution[2] == pytest.approx(5.0, abs=0.2)


def test_a_config_that_is_not_understood_is_refused():
    with pytest.raises(ShapeError, match="mixture of experts"):
        shape_from_config("x", {"num_local_experts": 8})
    with pytest.raises(ShapeError, match="no num_attention_heads"):
        shape_from_config("x", {"hidden_size": 8})
    with pytest.raises(ShapeError, match="hidden_size = -8"):
        shape_from_config("x", {"num_attention_heads": 2, "hidden_size": -8})
