"""The offline API, as a user's script would call it."""

import pytest
from conftest_types import TinyModelDir
from engine_harness import cold

from engine import LLM, ParameterError, SamplingParams
from engine.build import LoadedEngine

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def llm(tiny_model_dir: TinyModelDir) -> LLM:
    folder = str(tiny_model_dir("llama"))
    return LLM(folder, dtype="float32", page_size=4, num_pages=256, threads=1)


def test_answers_come_in_the_order_of_the_prompts(llm: LLM, llama: LoadedEngine) -> None:
    prompts = ["hello world, this is what", "the", [5, 6, 7]]
    answers = llm.generate(prompts, GREEDY, progress=False)
    assert [answer.prompt for answer in answers] == [prompts[0], prompts[1], None]
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = llm.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        assert answer.prompt_token_ids == tuple(ids)
        (choice,) = answer.outputs
        assert choice.token_ids == cold(llama, ids, 8)
        assert (
            choice.text
            == llm.tokenizer.decode([*ids, *choice.token_ids])[len(llm.tokenizer.decode(ids)) :]
        )
        assert choice.finish_reason == "length"


def test_a_single_prompt_may_be_given_bare(llm: LLM) -> None:
    text = llm.generate("hello", GREEDY, progress=False)
    ids = llm.generate(llm.tokenizer.encode("hello"), GREEDY, progress=False)
    assert text[0].outputs[0].token_ids == ids[0].outputs[0].token_ids


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    several = [SamplingParams(max_tokens=2, n=3, seed=1), SamplingParams(max_tokens=5, logprobs=2)]
    first, second = llm.generate(["one", "two"], several, progress=False)
    assert [len(choice.token_ids) for choice in first.outputs] == [2, 2, 2]
    assert first.outputs[0].logprobs is None
    assert second.outputs[0].logprobs is not None
    assert [len(entry.top) for entry in second.outputs[0].logprobs] == [2] * 5
    with pytest.raises(ValueError, match="2 prompts, but 1 sampling parameters"):
        llm.generate(["one", "two"], several[:1], progress=False)


def test_a_stop_string_ends_the_answer_before_it(llm: LLM) -> None:
    long = SamplingParams(temperature=0.0, max_tokens=24)
    (full,) = llm.generate("hello world", long, progress=False)
    text = full.outputs[0].text
    stop = text[len(text) // 2 :][:3]
    params = SamplingParams(temperature=0.0, max_tokens=24, stop=(stop,))
    (cut,) = llm.generate("hello world", params, progress=False)
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)
    assert (llm.stats.pages_in_use, llm.stats.finished_abort) == (0, 0)


def test_a_stop_token_ends_the_answer_and_shows_no_text(llm: LLM) -> None:
    (full,) = llm.generate("hello world", GREEDY, progress=False)
    ids = full.outputs[0].token_ids
    params = SamplingParams(temperature=0.0, max_tokens=8, stop_token_ids=(ids[4],))
    (cut,) = llm.generate("hello world", params, progress=False)
    end = ids.index(ids[4]) + 1
    assert cut.outputs[0].token_ids == ids[:end]
    assert full.outputs[0].text.startswith(cut.outputs[0].text)
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", ids[4])


def test_the_cache_stays_warm_between_calls(llm: LLM) -> None:
    prompt = list(range(100, 121))
    (cold_answer,) = llm.generate(prompt, GREEDY, progress=False)
    (warm_answer,) = llm.generate(prompt, GREEDY, progress=False)
    assert (cold_answer.num_cached_tokens, warm_answer.num_cached_tokens) == (0, 20)
    assert warm_answer.outputs[0].token_ids == cold_answer.outputs[0].token_ids


def test_chat_goes_through_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (answer,) = llm.chat(messages, GREEDY, progress=False)
    rendered = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert list(answer.prompt_token_ids) == llm.tokenizer.encode(rendered)
    assert len(llm.chat([messages, messages], GREEDY, progress=False)) == 2


@pytest.mark.parametrize(
    ("prompt", "params", "complaint"),
    [
        ([1, 352], {}, r"prompt holds token id 352, the vocabulary is 0 to 351"),
        ([-1], {}, r"prompt holds token id -1"),
        ([], {}, r"prompt must hold at least one token"),
        ([1] * 256, {}, r"256 tokens and leaves no room.*context of 256"),
        ([1] * 200, {"max_tokens": 57}, r"200 tokens and max_tokens 57 exceed the context of 256"),
        ([1], {"max_tokens": 0}, r"max_tokens must be at least 1, got 0"),
        ([1] * 250, {"min_tokens": 7}, r"min_tokens is 7, the answer has room for 6 tokens"),
        (
            [1],
            {"min_tokens": 2, "allowed_token_ids": (5,), "stop_token_ids": (5, 6)},
            r"min_tokens is 2 and every one of allowed_token_ids ends the answer",
        ),
        ([True, False], {}, r"prompt must hold integers, got True"),
        ([1.5], {}, r"prompt must hold integers, got 1.5"),
        (b"abc", {}, r"a prompt must be a text or a list of token ids, got bytes"),
        ([1], {"stop_token_ids": (352,)}, r"stop_token_ids holds token id 352"),
        ([1], {"n": 128, "max_tokens": 1}, None),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_runs(
    llm: LLM, prompt: list[int], params: dict[str, object], complaint: str | None
) -> None:
    steps = llm.stats.num_steps
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    if complaint is None:
        assert len(llm.generate([prompt], sampling, progress=False)[0].outputs) == 128
        return
    with pytest.raises(ParameterError, match=complaint):
        llm.generate([[1, 2, 3], prompt], sampling, progress=False)
    assert llm.stats.num_steps == steps
    assert llm.stats.num_waiting == 0


def test_without_a_limit_the_answer_fills_the_context(llm: LLM) -> None:
    (answer,) = llm.generate([[1] * 250], SamplingParams(temperature=0.0), progress=False)
    assert len(answer.outputs[0].token_ids) == 6
    assert answer.outputs[0].finish_reason == "length"
