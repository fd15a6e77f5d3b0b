"""docs/api.md, and the ranges that it and the OpenAPI document tell."""

from pathlib import Path

import pytest

from server.api_docs import api_docs, api_document
from server.errors import STATUS_BY_CODE
from server.protocol.chat import ChatCompletionRequest
from server.protocol.completions import CompletionRequest

DOCS = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_page_is_what_the_code_says():
    assert DOCS.read_text() == api_docs(), "run: python -m server.api_docs > docs/api.md"


def test_every_field_path_and_code_is_on_the_page():
    page = DOCS.read_text()
    for model in (ChatCompletionRequest, CompletionRequest):
        for name in (*model.model_fields, *model.UNSUPPORTED, *model.WITHOUT_EFFECT):
            assert f"`{name}`" in page
    for path in api_document()["paths"]:
        assert path in page
    for code in STATUS_BY_CODE:
        assert f"`{code}`" in page


def ranges():
    """Every range that the document tells: (path, field, keyword, limit)."""
    paths = api_document()["paths"]
    for path in ("/v1/chat/completions", "/v1/completions"):
        body = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for name, field in body["properties"].items():
            for keyword in ("minimum", "maximum", "exclusiveMinimum"):
                if keyword in field:
                    yield path, name, keyword, field[keyword]


@pytest.mark.parametrize(("path", "name", "keyword", "limit"), list(ranges()))
async def test_told_ranges_are_the_real_ones(new_engine, new_client, path, name, keyword, limit):
    client = new_client(new_engine("x", max_num_seqs=1000))
    body = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"prompt": "x"},
    }[path]
    if name == "top_logprobs":
        body["logprobs"] = True
    if name == "max_tokens" and path == "/v1/completions":  # 0 is for scoring
        body["echo"] = True
    outside = limit + 1 if keyword == "maximum" else limit - 1
    if keyword == "exclusiveMinimum":
        outside = limit
    inside = limit + 0.001 if keyword == "exclusiveMinimum" else limit
    if name == "timeout":  # so short a time would be up before the answer
        inside = 60
    response = await client.post(path, json={**body, name: inside})
    assert response.status_code == 200, response.text
    response = await client.post(path, json={**body, name: outside})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name
