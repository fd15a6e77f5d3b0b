"""Every value outside its range is refused with the field, the value and the limit."""

import math
import pickle

import pytest

from scheduler import ParameterError, SamplingParams
from scheduler.sampling_params import MAX_CHOICES, MAX_LOGPROBS, MAX_SEED, MAX_STOP_STRINGS

# Field -> (lowest, highest), both allowed; None where there is no limit.
NUMBERS = {
    "temperature": (0.0, 100.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 100.0),
}
POSITIVE_NUMBERS = {"top_p": 1.0}  # 0 is not allowed
INTEGERS = {
    "n": (1, MAX_CHOICES),
    "top_k": (-1, None),
    "seed": (-MAX_SEED, MAX_SEED),
    "max_tokens": (0, None),
    "min_tokens": (0, None),
    "logprobs": (0, MAX_LOGPROBS),
    "prompt_logprobs": (0, MAX_LOGPROBS),
}
FLOATS = [*NUMBERS, *POSITIVE_NUMBERS]


def refusal(**fields):
    with pytest.raises(ParameterError) as raised:
        SamplingParams(**fields)
    return raised.value


def test_the_defaults_are_openais():
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p) == (1, 1.0, 1.0)
    assert (params.max_tokens, params.seed, params.logprobs) == (None, None, None)
    assert not params.greedy


def test_temperature_zero_is_greedy():
    assert SamplingParams(temperature=0).greedy


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(field, value):
    error = refusal(**{field: value})
    assert error.param == field
    assert field in str(error) and str(value) in str(error)


@pytest.mark.parametrize("field", FLOATS)
@pytest.mark.parametrize("value", [True, "nan", "0.5", None, [1.0]])
def test_values_that_are_not_numbers_are_refused(field, value):
    error = refusal(**{field: value})
    assert error.param == field
    assert "must be a number" in str(error) and repr(value) in str(error)


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", [True, 1.0, math.nan, "1"])
def test_values_that_are_not_integers_are_refused(field, value):
    error = refusal(**{field: value})
    assert error.param == field
    assert "must be an integer" in str(error) and repr(value) in str(error)


@pytest.mark.parametrize(("field", "limits"), NUMBERS.items())
def test_numbers_are_taken_up_to_their_limits_and_not_beyond(field, limits):
    low, high = limits
    for value in limits:
        assert getattr(SamplingParams(**{field: value}), field) == value
    for value in (low - 0.1, high + 0.1):
        error = refusal(**{field: value})
        assert error.param == field
        assert f"at least {low:g} and at most {high:g}, got {value}" in str(error)


@pytest.mark.parametrize(("field", "high"), POSITIVE_NUMBERS.items())
def test_numbers_that_must_be_above_zero(field, high):
    for value in (1e-6, high):
        assert getattr(SamplingParams(**{field: value}), field) == value
    for value in (0.0, -1.0, high + 0.1):
        error = refusal(**{field: value})
        assert error.param == field
        assert f"above 0 and at most {high:g}, got {value}" in str(error)


@pytest.mark.parametrize(("field", "limits"), INTEGERS.items())
def test_integers_are_taken_up_to_their_limits_and_not_beyond(field, limits):
    low, high = limits
    for value in (low, high if high is not None else 10**9):
        assert getattr(SamplingParams(**{field: value, **room_for(field)}), field) == value
    for value in [low - 1] + ([high + 1] if high is not None else []):
        error = refusal(**{field: value})
        assert error.param == field
        assert str(low) in str(error) and str(value) in str(error)


def room_for(field):
    """What else a field's highest value needs."""
    return {"max_tokens": 10**9} if field == "min_tokens" else {}


def test_integers_are_numbers_too():
    assert SamplingParams(temperature=1, top_p=1, presence_penalty=-2).temperature == 1


def test_a_minimum_above_the_maximum_is_refused_with_both():
    error = refusal(min_tokens=5, max_tokens=4)
    assert error.param == "min_tokens"
    assert "5" in str(error) and "4" in str(error)
    assert SamplingParams(min_tokens=4, max_tokens=4).min_tokens == 4


def test_one_stop_string_may_stand_without_a_list():
    assert SamplingParams(stop="\n\n").stop == ("\n\n",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize("stop", ["", ["a", ""], ["a", 3], [None]])
def test_stop_strings_must_be_strings_that_are_not_empty(stop):
    assert refusal(stop=stop).param == "stop"


def test_too_many_stop_strings_are_refused_with_their_number():
    assert len(SamplingParams(stop=["x"] * MAX_STOP_STRINGS).stop) == MAX_STOP_STRINGS
    error = refusal(stop=["x"] * (MAX_STOP_STRINGS + 1))
    assert error.param == "stop"
    assert str(MAX_STOP_STRINGS) in str(error) and str(MAX_STOP_STRINGS + 1) in str(error)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids"])
@pytest.mark.parametrize("token_ids", [[-1], [5, True], [2.0], ["7"]])
def test_token_ids_are_non_negative_integers(field, token_ids):
    error = refusal(**{field: token_ids})
    assert error.param == field
    assert repr(token_ids[-1]) in str(error)


def test_a_choice_among_no_tokens_is_refused():
    assert refusal(allowed_token_ids=[]).param == "allowed_token_ids"
    assert SamplingParams(allowed_token_ids=None).allowed_token_ids is None


@pytest.mark.parametrize(
    "logit_bias",
    [{-1: 0.0}, {"5": 1.0}, {5: math.nan}, {5: math.inf}, {5: 100.5}, {5: True}, {5: "1"}],
)
def test_biases_are_finite_numbers_by_token_id(logit_bias):
    assert refusal(logit_bias=logit_bias).param == "logit_bias"


def test_biases_are_taken_up_to_their_limits():
    assert SamplingParams(logit_bias={0: -100, 7: 100.0}).logit_bias == {0: -100, 7: 100.0}


def test_params_are_immutable():
    with pytest.raises(AttributeError):
        SamplingParams().temperature = 0.0


def test_an_error_keeps_its_field_between_processes():
    error = pickle.loads(pickle.dumps(refusal(n=0)))
    assert isinstance(error, ParameterError)
    assert error.param == "n" and "got 0" in str(error)


@pytest.mark.parametrize("field", FLOATS)
def test_integers_beyond_any_float_are_refused(field):
    assert refusal(**{field: 10**400}).param == field


@pytest.mark.parametrize("fields", [{"stop": 5}, {"stop_token_ids": 5}, {"logit_bias": [1]}])
def test_values_that_are_not_lists_are_refused(fields):
    assert refusal(**fields).param in fields
