"""LangChain's client for OpenAI, pointed at us by its base URL alone."""

import openai
import pytest

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]

MESSAGES = [("system", "be brief"), ("user", "hello")]


@pytest.fixture
def model(base_url):
    from langchain_openai import ChatOpenAI  # here, because only `make test-clients` installs it

    return ChatOpenAI(
        base_url=f"{base_url}/v1", api_key="none", model="tiny", max_tokens=12, seed=1
    )


def test_an_answer_with_its_usage(model):
    answer = model.invoke(MESSAGES)
    assert isinstance(answer.content, str)
    assert answer.response_metadata["finish_reason"] in ("length", "stop")
    usage = answer.usage_metadata
    assert usage["input_tokens"] > 0 and usage["output_tokens"] == 12
    assert usage["total_tokens"] == usage["input_tokens"] + 12


def test_the_pieces_of_a_stream_are_the_answer(model):
    whole = model.invoke(MESSAGES)
    pieces = list(model.stream(MESSAGES, stream_usage=True))
    assert len(pieces) > 2
    assert "".join(piece.content for piece in pieces) == whole.content
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    counted = total.usage_metadata
    assert counted["output_tokens"] == whole.usage_metadata["output_tokens"]


async def test_the_async_interface(model):
    whole = await model.ainvoke(MESSAGES)
    pieces = [piece.content async for piece in model.astream(MESSAGES)]
    assert "".join(pieces) == whole.content


def test_logprobs(model):
    answer = model.bind(logprobs=True, top_logprobs=2).invoke(MESSAGES)
    entries = answer.response_metadata["logprobs"]["content"]
    assert len(entries) == 12
    assert all(entry["logprob"] <= 0 and len(entry["top_logprobs"]) == 2 for entry in entries)


def test_a_refusal_is_the_error_that_langchain_knows(model):
    with pytest.raises(openai.BadRequestError, match="context"):
        model.bind(max_tokens=10_000).invoke(MESSAGES)
