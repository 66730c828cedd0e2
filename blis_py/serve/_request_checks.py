"""Checks of a request before it reaches the backend, and limits of the traffic."""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from blis_py.serve._metrics import ServeMetrics
from blis_py.serve.backend import Backend
from blis_py.serve.errors import ApiError, error_body
from blis_py.serve.settings import ServeSettings

_DISCARDED_BYTES = 64 * 2**20
"""Longest body that is read although it is too large."""
OPEN_PATHS = frozenset(("/health", "/health/ready", "/ping", "/metrics", "/version"))
"""Paths that need no API key."""


class RequestChecks:
    """Refusal of requests that the backend cannot take now."""

    def __init__(self, backend: Backend, settings: ServeSettings) -> None:
        self.backend, self._settings = backend, settings
        self.metrics = ServeMetrics(backend)
        self.draining = False

    def check_model(self, name: str | None) -> None:
        """
        Raises:
            ApiError: no model of this name.
        """
        if name is not None and name not in self.backend.models:
            raise ApiError(404, f"the model {name!r} does not exist", "model")

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
    """ASGI middleware: API key, and the size of bodies.

    A body is refused as soon as its declared or received length exceeds the limit.
    """

    def __init__(self, app: ASGIApp, settings: ServeSettings) -> None:
        self._app, self._max_bytes = app, settings.max_body_bytes
        self._problem = f"the body is larger than {self._max_bytes:,} bytes"
        self._key = None if settings.api_key is None else f"Bearer {settings.api_key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        headers = dict(scope["headers"])
        if not self._admits(path, headers.get(b"authorization", b"")):
            await _refuse(send, 401, "the API key is missing or wrong", [(b"www-authenticate", b"Bearer")])
            return
        declared = headers.get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_bytes:
            if int(declared) <= _DISCARDED_BYTES:
                await _discard(receive)
            await _refuse(send, 413, self._problem, [(b"connection", b"close")])
            return
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise HTTPException(413, self._problem)
            return message

        await self._app(scope, counted, send)

    def _admits(self, path: str, given: bytes) -> bool:
        if self._key is None or path in OPEN_PATHS:
            return True
        return hmac.compare_digest(given, self._key)


async def _discard(receive: Receive) -> None:
    """Read a body to its end: a client that is still sending might not see the answer."""
    while True:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            return


async def _refuse(send: Send, status: int, problem: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
    body = json.dumps(error_body(status, problem)).encode()
    fixed: list[tuple[bytes, Any]] = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
