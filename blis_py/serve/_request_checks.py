"""Checks of a request before it reaches the backend, and limits of the traffic."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blis_py.errors import plain
from blis_py.serve._metrics import ServeMetrics
from blis_py.serve.backend import Backend
from blis_py.serve.errors import ApiError, error_body
from blis_py.serve.settings import ServeSettings

_DISCARDED_BYTES = 64 * 2**20
"""Longest body that is read although it is too large."""
_ADMIN = ("/admin", "/sleep", "/wake_up", "/reset_prefix_cache")
"""Paths of routes that change the server."""
_BODY_S = 60.0
"""Time within which a body must be complete."""
OPEN_PATHS = frozenset(("/health", "/health/ready", "/ping", "/metrics", "/version"))
"""Paths that need no API key."""


class RequestChecks:
    """Refusal of requests that the backend cannot take now."""

    def __init__(self, backend: Backend, settings: ServeSettings) -> None:
        self.backend, self._settings = backend, settings
        self.metrics = ServeMetrics(backend)
        self.draining = False

    @property
    def ready(self) -> bool:
        """Whether a request would be answered."""
        backend = self.backend
        return backend.ready and not backend.failure and not self.draining

    def check_model(self, name: str | None) -> None:
        """
        Raises:
            ApiError: no model of this name.
        """
        if name is not None and name not in self.backend.models:
            raise ApiError(404, f"the model {plain(name)!r} does not exist", "model")

    def check_queue(self) -> None:
        """
        Raises:
            ApiError: it is starting, stopping or broken, or its queue is full.
        """
        if self.backend.failure:
            raise ApiError(503, "the engine has failed; the server's log has the details")
        if self.draining or not self.backend.ready:
            state = "stopping" if self.draining else "starting"
            raise ApiError(503, f"the server is {state}", retry_after_s=1)
        limit = self._settings.max_queue
        if limit is not None and sum(load.waiting for load in self.backend.load()) >= limit:
            raise ApiError(429, f"{limit} requests are waiting", retry_after_s=1)


class LimitsMiddleware:
    """ASGI middleware: origin, API key, routes of the operator, and size and time of bodies.

    A body is refused as soon as its declared or received length exceeds the limit.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._settings, self._max_bytes = app, settings, settings.max_body_bytes
        self._opens_admin = settings.admin or (settings.api_key is not None and settings.key_opens_admin)
        self._problem = f"the body is larger than {self._max_bytes:,} bytes"
        self._key = None if settings.api_key is None else f"Bearer {settings.api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers = dict(scope["headers"])
        declared = _declared_bytes(headers)
        if refusal := self._refusal(path, headers, declared):
            if declared <= _DISCARDED_BYTES:
                await _discard(receive)
            await _refuse(send, *refusal)
            return
        received, until_s = 0, asyncio.get_running_loop().time() + _BODY_S
        whole = False

        async def counted() -> Message:
            nonlocal received, whole
            if whole:
                return await receive()
            try:
                async with asyncio.timeout_at(until_s):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, f"the body is not complete after {_BODY_S:g} s") from None
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, self._problem)
            return message

        await self._app(scope, counted, send)

    def _refusal(
        self, path: str, headers: Mapping[bytes, bytes], declared: int
    ) -> tuple[int, str, list[tuple[bytes, bytes]]] | None:
        """Status, reason and headers of a response to a request that is refused by its head; else None."""
        closes = [(b"connection", b"close")]
        if problem := foreign(headers, self._settings):
            return 403, problem, closes
        if not self._admits(path, headers.get(b"authorization", b"")):
            return 401, "the API key is missing or wrong", [(b"www-authenticate", b"Bearer")]
        if path.startswith(_ADMIN) and not self._opens_admin:
            key = " or a key" if self._settings.key_opens_admin else ""
            return 403, f"this changes the server: start the server with --enable-admin{key}", closes
        return (413, self._problem, closes) if declared > self._max_bytes else None

    def _admits(self, path: str, given: bytes) -> bool:
        if self._key is None or path in OPEN_PATHS:
            return True
        return hmac.compare_digest(given, self._key)


def foreign(headers: Mapping[bytes, bytes], settings: ServeSettings) -> str:
    """The reason why a request that a page of another origin may have made is refused; empty = it may not.

    A server on the loopback interface has the names of that, addresses, names without a dot, which no page
    of the internet can have, and those of `allowed_hosts`.
    """
    host, names = headers.get(b"host", b"").decode("latin-1").lower(), settings.allowed_hosts
    if host and (names or settings.is_loopback) and not _is_local(_name(host), names):
        return "the header Host names another server: add --allowed-host, if it is this one"
    origin = headers.get(b"origin")
    if origin is None:
        return ""
    own = origin.decode("latin-1").lower().partition("://")[2]
    return "" if own and (own == host or _name(own) in names) else "the request comes from another page"


def _name(netloc: str) -> str:
    """The host of `HOST:PORT`."""
    return netloc[1:].partition("]")[0] if netloc.startswith("[") else netloc.partition(":")[0]


def _is_local(name: str, names: Sequence[str]) -> bool:
    if name in names or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return "." not in name
    return True


def _declared_bytes(headers: Mapping[bytes, bytes]) -> int:
    """The length of a body by its head; 0 if that says nothing."""
    declared = headers.get(b"content-length", b"0")
    return int(declared) if declared.isascii() and declared.isdigit() else 0


async def _discard(receive: Receive) -> None:
    """Read a body to its end, or as far as it comes in time.

    A client that is still sending might not see the answer.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(_BODY_S):
            message = await receive()
            while message["type"] == "http.request" and message.get("more_body"):
                message = await receive()


async def _refuse(send: Send, status: int, problem: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    body = json.dumps(error_body(status, problem)).encode()
    fixed: list[tuple[bytes, Any]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
