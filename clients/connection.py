"""Where the server is and how to speak to it: the settings of a client, checked when it is made.

Both clients build their httpx client from one `Connection`, so that they cannot differ.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from clients.calls import Call, check_header_value
from clients.retrying import Deadline

DEFAULT_URL = "http://127.0.0.1:8000"
DEFAULT_TIMEOUT = 600.0
DEFAULT_CONNECT_TIMEOUT = 5.0
DEFAULT_MAX_CONNECTIONS = 100
DEFAULT_MAX_RETRIES = 2
MAX_PORT = 65535
# Shorter than servers keep an idle connection, lest one is closed just as it is used again.
IDLE_CONNECTION_SECONDS = 30.0


class TimeLimits(Mapping[str, float | None]):
    """What httpx takes as its time limits in seconds: here all of them are what is left until
    `deadline`, at the moment when httpx asks. It does so as it turns to the next of connecting,
    sending, and reading, which would else add up."""

    def __init__(self, deadline: Deadline, connect_timeout: float) -> None:
        self._deadline = deadline
        self._connect_timeout = connect_timeout

    def __getitem__(self, phase: str) -> float | None:
        limit = self._connect_timeout if phase == "connect" else None
        return self._deadline.within(limit).seconds

    def __iter__(self) -> Iterator[str]:
        return iter(("pool", "connect", "write", "read"))

    def __len__(self) -> int:
        return 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """`base_url` may end in the `/v1` that other SDKs want. `connect_timeout` in seconds limits the
    connecting of each attempt. Raises `ValueError`."""

    base_url: str
    api_key: str | None = field(repr=False)
    connect_timeout: float
    max_connections: int
    headers: Mapping[str, str] = field(repr=False)

    def __post_init__(self) -> None:
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ValueError(f"base_url must be like http://host:port, got {self.base_url!r}")
        if (self._url.port or 0) > MAX_PORT:
            raise ValueError(f"base_url must have a port up to {MAX_PORT}, got {self.base_url!r}")
        if self.api_key is not None:
            check_header_value("api_key", self.api_key, secret=True)
        for name, value in self.headers.items():
            check_header_value(f"header {name}", value, secret=True)
        if self.max_connections < 1:
            raise ValueError(f"max_connections must be at least 1, got {self.max_connections}")
        if not self.connect_timeout > 0:
            raise ValueError(f"connect_timeout must be above 0, got {self.connect_timeout}")

    @property
    def origin(self) -> str:
        """For messages: without a password that the URL may hold."""
        port = "" if self._url.port is None else f":{self._url.port}"
        host = f"[{self._url.host}]" if ":" in self._url.host else self._url.host
        return f"{self._url.scheme}://{host}{port}"

    def httpx_options(self) -> dict[str, Any]:
        """Keywords for `httpx.Client` and `httpx.AsyncClient` alike."""
        headers = {"User-Agent": "octavo-python", **self.headers}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        return {
            "base_url": self.base_url.rstrip("/").removesuffix("/v1"),
            "headers": headers,
            "limits": httpx.Limits(
                max_connections=self.max_connections,
                max_keepalive_connections=self.max_connections,
                keepalive_expiry=IDLE_CONNECTION_SECONDS,
            ),
            # A proxy of the environment cannot reach this machine's own loopback.
            "trust_env": not self._is_local,
        }

    def request(self, call: Call[Any], deadline: Deadline) -> dict[str, Any]:
        """Keywords of either httpx client's `build_request`, for an attempt at `call`."""
        return {
            "method": call.method,
            "url": call.path,
            "content": call.body,
            "headers": call.headers,
            "extensions": {"timeout": TimeLimits(deadline, self.connect_timeout)},
        }

    @property
    def _url(self) -> httpx.URL:
        try:
            url = httpx.URL(self.base_url)
            url.host.encode("idna")  # what looking up the name does first
            return url
        except (httpx.InvalidURL, UnicodeError) as error:
            raise ValueError(f"base_url {self.base_url!r} is no URL: {error}") from None

    @property
    def _is_local(self) -> bool:
        if self._url.host == "localhost":
            return True
        try:
            address = ipaddress.ip_address(self._url.host)
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified
