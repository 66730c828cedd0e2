"""uvicorn's HTTP/1.1 with a time limit for the heads of requests, and a limit of connections."""

from __future__ import annotations

import asyncio
import resource
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_OTHER_FILES = 64
"""File descriptors that are no connections."""


def protocol_of(head_timeout_s: float, max_connections: int) -> type[H11Protocol]:
    """The protocol with these limits."""
    most = min(max_connections, max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES, 1))

    class Limited(H11Protocol):
        """A connection."""

        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                transport.write(_FULL)
                transport.close()
                return
            self._expect_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._forget()
            elif self._late is None:
                self._expect_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _expect_head(self) -> None:
            self._late = self.loop.call_later(head_timeout_s, self.transport.close)

        def _forget(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

    return Limited
