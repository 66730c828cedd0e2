"""A small HTTP/1.1 client on asyncio, cheap enough for thousands of requests a second on one core."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast
from urllib.parse import urlsplit

from blis_py.errors import InputError

_LONGEST_HEAD = 65536


class HttpError(Exception):
    """No usable response: refused, broken off, or not HTTP."""


class Receiver(Protocol):
    """Receiver of a response."""

    def head(self, status: int, headers: dict[str, str]) -> None: ...

    def data(self, part: bytes, time_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """Address of a server.

    Attributes:
        path: before the paths of the API, without a final slash.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    path: str = ""
    headers: tuple[tuple[str, str], ...] = field(default=())

    @classmethod
    def of(cls, url: str, headers: dict[str, str], *, insecure: bool = False) -> Target:
        """
        Raises:
            InputError: not an http(s) URL.
        """
        fix = "write http://127.0.0.1:8000"
        try:
            parts = urlsplit(url if "//" in url else f"http://{url}")
            host, port = parts.hostname, parts.port
        except ValueError:
            raise InputError("not the URL of a server", key="--server-url", value=url, fix=fix) from None
        if parts.scheme not in ("http", "https") or not host or not _plain(f"{host}{parts.path}"):
            raise InputError("not the URL of a server", key="--server-url", value=url, fix=fix)
        if parts.username is not None or parts.query or parts.fragment or port == 0:
            problem = "must have no user, query or port 0"
            raise InputError(problem, key="--server-url", value=parts._replace(netloc=host).geturl(), fix=fix)
        for name, value in headers.items():
            if not (value.isascii() and value.isprintable()):
                raise InputError("must be printable ASCII", key="--api-key", fix=f"see the header {name}")
        tls = None
        if parts.scheme == "https":
            tls = ssl.create_default_context()
            if insecure:
                tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        default = 443 if tls else 80
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(host, port or default, tls, path, tuple(headers.items()))

    def request(self, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        """The bytes of a request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.path}{path} HTTP/1.1", f"Host: {host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _plain(text: str) -> bool:
    """Whether a text can stand in the first line of a request."""
    return text.isascii() and text.isprintable() and " " not in text


class _Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.usable = False
        self._rest = b""
        """Received, and too short to be used."""
        self._receiver: Receiver | None = None
        self._done: asyncio.Future[None] | None = None
        self._left: int | None = 0
        """Bytes left of the body or chunk; None = until the connection closes."""
        self._state = "idle"
        self._chunked = False
        self._keep = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.usable = cast(asyncio.Transport, transport), True

    def begin(self, request: bytes, receiver: Receiver) -> asyncio.Future[None]:
        """Send a request; the future is done when its response is complete."""
        self._receiver, self._state, self._rest = receiver, "head", b""
        self._done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        time_ns = time.monotonic_ns()
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, end = 0, len(data)
        try:
            while at < end and self._state != "idle":
                next_at = self._parse(data, at, time_ns)
                if next_at < 0:
                    self._rest = data[at:]
                    return
                at = next_at
        except (ValueError, IndexError) as error:
            self._fail(HttpError(f"not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._state == "body" and self._left is None:
            self._complete()
        elif self._state != "idle":
            self._fail(HttpError(f"the connection broke off: {error or 'closed by the server'}"))

    def _parse(self, data: bytes, at: int, time_ns: int) -> int:
        """Handle the next part of the data; returns where it ends, or -1 if there is too little of it."""
        if self._state == "size":
            return self._parse_size(data, at)
        if self._state == "body":
            return self._parse_body(data, at, time_ns)
        return self._parse_head(data, at)

    def _parse_head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            if len(data) - at > _LONGEST_HEAD:
                raise ValueError("a head without end")
            return -1
        lines = data[at:end].decode("latin-1").split("\r\n")
        status = int(lines[0].split(" ", 2)[1])
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if status != 100:
            self._begin_body(status, headers)
        return end + 4

    def _begin_body(self, status: int, headers: dict[str, str]) -> None:
        assert self._receiver is not None
        self._receiver.head(status, headers)
        self._keep = headers.get("connection", "").lower() != "close"
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        length = headers.get("content-length")
        self._left = 0 if self._chunked else int(length) if length is not None else None
        self._state = "size" if self._chunked else "body"
        if self._left == 0 and not self._chunked:
            self._complete()

    def _parse_size(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n", at)
        if end < 0:
            return -1
        if end == at:  # behind the chunk before
            return end + 2
        size = int(data[at:end].split(b";")[0], 16)
        if not size:
            self._complete()
            return len(data)  # trailers are of no use
        self._left, self._state = size, "body"
        return end + 2

    def _parse_body(self, data: bytes, at: int, time_ns: int) -> int:
        end = len(data) if self._left is None else min(at + self._left, len(data))
        assert self._receiver is not None
        self._receiver.data(data[at:end], time_ns)
        if self._left is not None:
            self._left -= end - at
            if not self._left:
                if self._chunked:
                    self._state = "size"
                else:
                    self._complete()
        return end

    def _complete(self) -> None:
        self._state, self._receiver = "idle", None
        if not self._keep:
            self.usable = False
            self.transport.close()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: HttpError) -> None:
        self._state, self._receiver, self.usable = "idle", None, False
        self.transport.abort()
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


class HttpClient:
    """Pool of open connections."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._idle: list[_Connection] = []

    async def send(
        self, request: bytes, receiver: Receiver, on_sent: Callable[[int], None] | None = None
    ) -> None:
        """Send a request and wait for the end of its response. A cancelled one closes its connection.

        Args:
            on_sent: called with the time at which it was written.

        Raises:
            HttpError: no usable response.
        """
        connection = self._taken() or await self._connected()
        if on_sent is not None:
            on_sent(time.monotonic_ns())
        try:
            await connection.begin(request, receiver)
        except BaseException:
            connection.transport.abort()
            raise
        if connection.usable:
            self._idle.append(connection)

    async def warm(self, connections: int) -> None:
        """Open connections ahead of time."""
        opened = await asyncio.gather(*(self._connected() for _ in range(connections)))
        self._idle += opened

    def close(self) -> None:
        for connection in self._idle:
            connection.transport.abort()
        self._idle.clear()

    def _taken(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and not connection.transport.is_closing():
                return connection
        return None

    async def _connected(self) -> _Connection:
        target = self.target
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, target.host, target.port, ssl=target.tls
            )
        except OSError as error:
            raise HttpError(f"cannot connect to {target.host}:{target.port}: {error}") from error
        return connection


class Whole:
    """Receiver of a small response as a whole."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.time_ns = 0

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status, self.headers = status, headers

    def data(self, part: bytes, time_ns: int) -> None:
        self.body += part
        self.time_ns = time_ns
