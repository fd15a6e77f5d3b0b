"""The shape that every refusal has, whatever is refused."""

from typing import Any

import httpx


def error_of(
    response: httpx.Response, status: int, code: str, param: str | None = None
) -> dict[str, Any]:
    """The error of a reply, once its shape, status and code are as they should be."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    for word in ("Error", "Traceback", "pydantic", ".py"):
        assert word not in error["message"]
    return error
