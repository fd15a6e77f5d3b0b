"""A server that does to its connections what a test's script says, and replies as ours sends them.

Scripts are functions of one `Exchange`, run in the connection's thread; they may reply well, badly,
partly or never.
"""

import json
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

WAIT_SECONDS = 20.0


def event(data: Any) -> bytes:
    return b"data: " + (data if isinstance(data, str) else json.dumps(data)).encode() + b"\n\n"


USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 4},
}
COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "created": 1,
    "model": "tiny",
    "choices": [{"index": 0, "text": "hello", "finish_reason": "stop", "logprobs": None}],
    "usage": USAGE,
}
CHAT_COMPLETION = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello", "refusal": None},
            "finish_reason": "stop",
        }
    ],
    "usage": USAGE,
}
USAGE_CHUNK = {"id": "x", "created": 1, "model": "tiny", "choices": [], "usage": USAGE}


def text_chunk(text: str, finish_reason: str | None = None, index: int = 0) -> dict[str, Any]:
    """Of /v1/completions."""
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "x", "created": 1, "model": "tiny", "choices": [choice], "usage": None}


def chat_chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return {"id": "x", "created": 1, "model": "tiny", "choices": [choice], "usage": None}


def chat_chunks(*texts: str) -> list[dict[str, Any]]:
    """A whole chat answer as our server sends it."""
    return [
        chat_chunk({"role": "assistant", "content": ""}),
        *(chat_chunk({"content": text}) for text in texts),
        chat_chunk({}, "stop"),
        USAGE_CHUNK,
    ]


class Exchange:
    """One request, as a script sees it, and the connection that it came on."""

    def __init__(self, connection: socket.socket, head: bytes, body: bytes) -> None:
        request_line, *lines = head.decode().split("\r\n")
        self.method, self.path, _ = request_line.split(" ")
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        self.body = body
        self._connection = connection

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def reply(self, status: int = 200, body: Any = b"", **headers: str) -> None:
        """A whole reply; a body that is no bytes is sent as JSON. `_` in a header's name is `-`."""
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._head(status, {**headers, "content_length": str(len(raw))})
        self.send(raw)

    def fail(self, status: int, code: str = "some_code", **headers: str) -> None:
        """An error in our server's shape."""
        error = {"message": f"it is {code}", "type": "some_type", "param": "field", "code": code}
        self.reply(status, {"error": error}, **headers)

    def begin(self, **headers: str) -> None:
        """The head of a stream."""
        self._head(
            200, {"content_type": "text/event-stream", "transfer_encoding": "chunked", **headers}
        )

    def piece(self, data: bytes) -> None:
        """A part of a stream's body, in a frame of its own."""
        self.send(b"%x\r\n%b\r\n" % (len(data), data))

    def event(self, data: Any) -> None:
        self.piece(event(data))

    def end(self) -> None:
        """The proper end of a stream's body."""
        self.send(b"0\r\n\r\n")

    def stream(self, *events: Any) -> None:
        """A whole and good stream."""
        self.begin()
        for data in (*events, "[DONE]"):
            self.event(data)
        self.end()

    def hang_up(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)

    def reset(self) -> None:
        """End the connection by RST."""
        linger = struct.pack("ii", 1, 0)
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._connection.close()

    def wait_gone(self) -> None:
        """Return when the client has closed its end."""
        self._connection.settimeout(WAIT_SECONDS)
        assert self._connection.recv(1) == b""

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.send(f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode())


Script = Callable[[Exchange], None]


class ScriptedServer:
    """Answers the k-th request by the k-th script, and all further ones by the last. Failed
    assertions of scripts are raised by `close`."""

    def __init__(self, *scripts: Script) -> None:
        self.exchanges: list[Exchange] = []
        self.num_connections = 0
        self._scripts = scripts
        self._lock = threading.Lock()
        self._failures: list[BaseException] = []
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            with suppress(OSError):  # closed already
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()
        for failure in self._failures:
            raise failure

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._lock:
                self._connections.append(connection)
                self.num_connections += 1
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while (exchange := _receive(connection)) is not None:
                    with self._lock:
                        self.exchanges.append(exchange)
                        index = min(len(self.exchanges), len(self._scripts)) - 1
                    self._scripts[index](exchange)
            except OSError:
                pass  # the client has left, or the script has closed the connection
            except BaseException as failure:
                self._failures.append(failure)


def _receive(connection: socket.socket) -> Exchange | None:
    received = b""
    while b"\r\n\r\n" not in received:
        data = connection.recv(65536)
        if not data:
            return None
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    exchange = Exchange(connection, head, body)
    missing = int(exchange.headers.get("content-length", "0")) - len(body)
    while missing > 0:
        data = connection.recv(missing)
        exchange.body += data
        missing -= len(data)
    return exchange
