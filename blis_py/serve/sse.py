"""Responses that notice the disconnect of their client: server-sent events, and a single JSON body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_T = TypeVar("_T")


class Disconnected(Exception):
    """The client has closed the connection."""


class EventStream(Response):
    """A stream of events.

    Args:
        events: complete events as bytes.
        on_end: called once, however it ends.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        headers: Mapping[str, str],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(headers={**headers, "Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._on_end = events, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(Disconnected):
                await unless_disconnected(receive, self._write(send))
        finally:
            self._on_end()

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for event in self._events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_disconnected(receive: Callable[[], Awaitable[Any]], work: Coroutine[Any, Any, _T]) -> _T:
    """Do the work unless the client goes first.

    Raises:
        Disconnected: it has.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Disconnected
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _gone(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
