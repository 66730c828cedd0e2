"""Responses that notice the disconnect of their client: server-sent events, and a single JSON body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
TRANSPORT = "blis.transport"
"""ASGI extension: the transport of a connection, to which the chunks of a body may be written directly."""
Write = Callable[[bytes], None]
Events = Callable[[Write], Awaitable[None]]
_T = TypeVar("_T")


class Disconnected(Exception):
    """The client has closed the connection."""


class EventStream(Response):
    """A stream of events, written when they come: no coroutine wakes up for an event.

    Args:
        events: writes complete events, and returns behind the last one.
        on_end: called once, however it ends.
    """

    media_type = "text/event-stream"

    def __init__(self, events: Events, headers: Mapping[str, str], on_end: Callable[[], None]) -> None:
        super().__init__(headers={**headers, "Cache-Control": "no-cache"})
        del self.headers["content-length"]
        self._events, self._on_end = events, on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(Disconnected):
                await unless_disconnected(receive, self._respond(scope, send))
        finally:
            self._on_end()

    async def _respond(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        transport = scope.get("extensions", {}).get(TRANSPORT)
        if transport is None or scope["http_version"] != "1.1":
            await self._through(send)
        else:
            await self._events(partial(_write_chunk, transport))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _through(self, send: Send) -> None:
        """Send the events as the messages of any ASGI server."""
        queue: asyncio.Queue[bytes] = asyncio.Queue()

        async def pump() -> None:
            while event := await queue.get():
                await send({"type": "http.response.body", "body": event, "more_body": True})

        pumping = asyncio.create_task(pump())
        try:
            await self._events(queue.put_nowait)
            queue.put_nowait(b"")
            await pumping
        finally:
            pumping.cancel()


def _write_chunk(transport: asyncio.WriteTransport, data: bytes) -> None:
    """Write a chunk of a body whose encoding is chunked."""
    if not transport.is_closing():
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))


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
