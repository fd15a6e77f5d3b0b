"""The server as the load test meets it outside the measured requests: which model it serves, how it
tokenizes, what its /metrics say. Through httpx; nothing here is timed.

Speaks vLLM's form of /tokenize and /detokenize, which is Octavo's, and llama.cpp's.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import httpx

from clients.bench.answer import error_message
from clients.bench.plan import BadInput

_TIMEOUT = 120.0
# Of what a run can do without: a server that hangs must not keep the figures from whoever waits.
_SHORT_TIMEOUT = 5.0
_RETRY_SECONDS = 0.5


class ServerFailure(Exception):
    """The server did not answer, or not with what was asked; the message is one short line."""


class Server:
    """One server; close it. `url` without the `/v1` that other tools want."""

    def __init__(
        self, url: str, headers: Mapping[str, str], *, endpoint: str, insecure: bool = False
    ) -> None:
        self.url = url
        self.model = ""
        self._endpoint = endpoint
        self._llama_style = False
        try:
            self._http = httpx.AsyncClient(
                base_url=url,
                headers=dict(headers),
                timeout=_TIMEOUT,
                trust_env=False,
                verify=not insecure,
            )
        except httpx.InvalidURL as error:
            raise BadInput(f"--url {url!r} is no URL: {error}") from None

    async def close(self) -> None:
        await self._http.aclose()

    async def choose_model(self, wanted: str | None, *, patience: float) -> None:
        """Find out what is served, waiting up to `patience` seconds for the server. A model that is
        named is not looked up: servers behind a gateway may list none. Raises `BadInput`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        while True:
            try:
                served = await self._served()
                break
            except ServerFailure as failure:
                if loop.time() >= deadline:
                    if wanted is not None and "no connection" not in str(failure):
                        served = [wanted]
                        break
                    raise BadInput(str(failure)) from None
            await asyncio.sleep(_RETRY_SECONDS)
        if wanted is None and not served:
            raise BadInput(f"{self.url} lists no models; name one by --model")
        self.model = wanted or served[0]

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """Raises `ServerFailure`."""
        if not self._llama_style:
            body = {"model": self.model, "prompt": text, "add_special_tokens": special}
            tokens = (await self._post("/tokenize", body)).get("tokens")
            if tokens:
                return list(tokens)
        # llama.cpp finds nothing where others put the text, and says so by an empty list.
        body = {"content": text, "add_special": special}
        tokens = (await self._post("/tokenize", body)).get("tokens")
        if not isinstance(tokens, list):
            raise ServerFailure("/tokenize gives no tokens")
        self._llama_style = bool(tokens)
        return tokens

    async def detokenize(self, tokens: list[int]) -> str:
        """Raises `ServerFailure`."""
        data = await self._post("/detokenize", {"model": self.model, "tokens": tokens})
        text = data.get("content" if self._llama_style else "prompt")
        if not isinstance(text, str):
            raise ServerFailure("/detokenize gives no text")
        return text

    async def count_chat_tokens(self, text: str) -> int:
        """Of a chat with one message, as the template renders it. Raises `ServerFailure`."""
        messages = [{"role": "user", "content": text}]
        tokens = (await self._post("/tokenize", {"model": self.model, "messages": messages})).get(
            "tokens"
        )
        if not tokens:
            raise ServerFailure("/tokenize takes no messages")
        return len(tokens)

    async def count_by_completing(self, prompt: str | list[int]) -> int | None:
        """Have one token generated; the prompt's tokens by usage, None if none is told. Raises
        `ServerFailure`."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": 1}
        if self._endpoint.endswith("chat/completions"):
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        usage = (await self._post(self._endpoint, body)).get("usage") or {}
        count = usage.get("prompt_tokens")
        return int(count) if count is not None else None

    async def metrics_text(self) -> str:
        """Raises `ServerFailure`."""
        return (await self._send("GET", "/metrics", timeout=_SHORT_TIMEOUT)).text

    async def version(self) -> str | None:
        """What the server calls itself, where it says so."""
        try:
            data = (await self._send("GET", "/version", timeout=_SHORT_TIMEOUT)).json()
        except (ServerFailure, ValueError):
            return None
        version = data.get("version") if isinstance(data, dict) else None
        return version if isinstance(version, str) else None

    async def _served(self) -> list[str]:
        try:
            data = (await self._send("GET", "/v1/models")).json()
            return [model["id"] for model in data["data"]]
        except (ValueError, KeyError, TypeError):
            raise ServerFailure(f"{self.url}/v1/models is no list of models") from None

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        response = await self._send("POST", path, json=body)
        try:
            data = response.json()
        except ValueError:
            raise ServerFailure(f"{path} gives no JSON") from None
        if not isinstance(data, dict):
            raise ServerFailure(f"{path} gives no JSON object")
        return data

    async def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            response = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            why = str(error) or type(error).__name__
            raise ServerFailure(f"no connection to {self.url}: {why}") from None
        if response.status_code == 404:
            why = error_message(response.content)  # the path is missing, or the model
            named = self.model and re.search(rf"(?<!\w){re.escape(self.model)}(?!\w)", why)
            raise ServerFailure(f"{path} answers 404: {why}" if named else f"no {path} there")
        if response.has_redirect_location:
            raise ServerFailure(f"{path} is at {response.headers['location']}: name that by --url")
        if not response.is_success:
            why = error_message(response.content)
            raise ServerFailure(f"{path} answers {response.status_code}: {why}")
        return response
