"""One request of the load test, from its content to a filled record.

Knows the two endpoints' bodies, the time limit and the kinds of failure; knows nothing of pace,
datasets or figures.
"""

import asyncio
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clients.bench.answer import AnswerReader
from clients.bench.http import Transport
from clients.bench.plan import Content
from clients.bench.records import Failure, RequestRecord
from clients.bench.reply_parser import ReplyError

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What every request of a run says. `timeout` in seconds for a whole answer, None: no limit."""

    endpoint: str
    model: str
    ignore_eos: bool = False
    timeout: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict)  # sampling and whatever else
    keep_text: bool = False

    @property
    def is_chat(self) -> bool:
        return self.endpoint.rstrip("/").endswith("chat/completions")

    def encode(self, content: Content, output_tokens: int | None) -> bytes:
        """The body of one request; `body` may override every field of it."""
        fields: dict[str, Any] = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.is_chat:
            fields["messages"] = content
        else:
            fields["prompt"] = content
        if output_tokens is not None:
            fields["max_tokens"] = output_tokens
        if self.ignore_eos:
            fields["ignore_eos"] = True
        fields.update(self.body)
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


class Sender:
    """Sends through `transport`; times are those of the event loop's clock since `start`."""

    def __init__(self, transport: Transport, options: RequestOptions) -> None:
        self.options = options
        self._transport = transport

    async def send(self, record: RequestRecord, body: bytes, start: float) -> None:
        """Send `body` and fill `record`. Failures are recorded, not raised; a cancelled request is
        marked as such, and the cancellation goes on."""
        loop = asyncio.get_running_loop()
        reader = AnswerReader(record, start, keep_text=self.options.keep_text)
        record.sent = loop.time() - start
        try:
            async with asyncio.timeout(self.options.timeout):
                await self._transport.post(self.options.endpoint, body, reader)
            reader.finish()
        except asyncio.CancelledError:
            record.cancelled = True
            raise
        except Exception as error:
            record.failure = record.failure or self._explain(error, record)
        finally:
            record.in_flight = False

    def _explain(self, error: Exception, record: RequestRecord) -> Failure:
        if isinstance(error, TimeoutError):
            return Failure("timeout", f"no whole answer within {self.options.timeout:g} s")
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return Failure("no connection", str(error))
        if isinstance(error, OSError | ReplyError):
            kind = "broken stream" if record.text_times else "broken connection"
            return Failure(kind, str(error) or type(error).__name__)
        raise error
