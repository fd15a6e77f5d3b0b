"""Requests over bare sockets, for clients that do what no library lets them do."""

import json
import socket
from typing import Any
from urllib.parse import urlsplit


def send_request(url: str, path: str, body: dict[str, Any]) -> socket.socket:
    """A socket on which a request has just been sent."""
    address = urlsplit(url)
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    connection = socket.create_connection((address.hostname, address.port))
    connection.sendall(head.encode() + raw)
    return connection
