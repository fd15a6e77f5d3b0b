"""Requests over bare sockets, for clients that do what no library lets them do."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit

WAIT_SECONDS = 20.0


def connect(url: str, *, receive_buffer: int | None = None) -> socket.socket:
    address = urlsplit(url)
    connection = socket.socket()
    connection.settimeout(WAIT_SECONDS)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.connect((address.hostname, address.port))
    return connection


def post_bytes(path: str, body: dict[str, Any], *headers: str) -> bytes:
    """A whole request."""
    raw = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: test",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
        *headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


def send_request(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A socket on which a request has just been sent."""
    connection = connect(url)
    connection.sendall(post_bytes(path, body))
    return connection


def read_all(connection: socket.socket) -> bytes:
    """What comes until the other side closes the connection."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received
