"""Apps on their ports: start, graceful and hard stop, outages."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.routing import Mount, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from blis_py.errors import InputError
from blis_py.serve._protocol import protocol_of
from blis_py.serve._signals import StopSignals
from blis_py.serve._sse import TRANSPORT
from blis_py.serve.app import make_app, starting
from blis_py.serve.backend import Backend
from blis_py.serve.settings import ServeSettings
from blis_py.serve.wallclock import loop_factory

log = logging.getLogger("blis.serve")
_BACKLOG = 4096
_LONGEST_OUTAGE_S = 3600.0
_FAILED_S = 10.0
"""Time in which a process that has lost its device ends by itself."""
_LOOK_S = 0.25
"""Interval at which a backend's failure is looked for."""
_FLUSH_S = 0.25
"""Time for the last bytes of responses to leave."""


class _Server(uvicorn.Server):
    """uvicorn without signal handlers: the owner of several servers has them."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Service:
    """A backend with its app on a port of its own, or several by paths on one port.

    Args:
        backends: by path, as `/instance-0`; an empty path is that of a single one.

    Raises:
        InputError: an empty host, or an address that is taken or not of this machine.
    """

    def __init__(self, backends: Mapping[str, Backend], settings: ServeSettings) -> None:
        if not settings.host:
            raise InputError(
                "must not be empty", key="--host", value="", fix="write 0.0.0.0 for all interfaces"
            )
        self.backends, self.settings = backends, settings
        self._apps: dict[str, FastAPI] = {}
        self._app: ASGIApp | None = None
        self._socket = _listening(settings.host, settings.port)
        self.port = int(self._socket.getsockname()[1])
        self._server: _Server | None = None
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"http{'s' if self.settings.tls_cert else ''}://{host}:{self.port}"

    async def start(self) -> None:
        """Start the backends; every response before is 503."""
        log.info("listening on %s", self.url)
        if not self.settings.is_loopback and self.settings.api_key is None:
            log.warning("other machines need no key to use this server: set --api-key, or --host 127.0.0.1")
        for path, backend in self.backends.items():
            await backend.start()
            app = self._apps[path] = make_app(backend, self.settings)
            app.add_api_route("/admin/outage", self.outage, methods=["POST"], response_model=None)
        whole = self._apps.get("")
        self._app = whole or Router([Mount(path, app) for path, app in self._apps.items()])
        for path in self.backends:
            log.info("ready on %s%s", self.url, path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app, or what answers before there is one."""
        transport = getattr(getattr(send, "__self__", None), "transport", None)  # of uvicorn's cycle
        if transport is not None:
            scope.setdefault("extensions", {})[TRANSPORT] = transport
        await (self._app or starting)(scope, receive, send)

    async def serve(self) -> None:
        """Serve until `stop`."""
        while not self._stopping:
            self._server = _Server(self._config())
            await self._server.serve(sockets=[self._socket])
            if self._stopping:
                return
            await asyncio.sleep(self._outage_s)
            self._socket = _listening(self.settings.host, self.port)

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self,
            http=protocol_of(self.settings.head_timeout_s, self.settings.max_connections),
            lifespan="off",
            log_config=None,
            access_log=False,
            backlog=_BACKLOG,
            ssl_certfile=self.settings.tls_cert,
            ssl_keyfile=self.settings.tls_key,
            timeout_keep_alive=30,
        )

    def stop(self) -> None:
        """Accept nothing more; `serve` returns once all responses have ended."""
        self._stopping = True
        for app in self._apps.values():
            app.state.checks.draining = True
            app.state.close()
        if self._server is not None:
            self._server.should_exit = True

    async def broken(self) -> None:
        """Wait until a backend has failed for good."""
        while not any(one.failure and one.ends_with_failure for one in self.backends.values()):
            await asyncio.sleep(_LOOK_S)

    async def outage(self, seconds: float = 5.0) -> dict[str, float]:
        """Close the port and every connection, and open it again after a time.

        Raises:
            InputError: the time is not between 0 and 3,600 s.
        """
        if not 0 <= seconds <= _LONGEST_OUTAGE_S:
            raise InputError("must be from 0 to 3600", key="seconds", value=seconds)
        self._outage_s = seconds
        task = asyncio.get_running_loop().create_task(self._go_out())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return {"seconds": seconds}

    async def _go_out(self) -> None:
        await asyncio.sleep(0.01)  # the answer to the request for it
        server = self._server
        assert server is not None
        server.should_exit = True
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            transport: Any = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def _listening(host: str, port: int) -> socket.socket:
    """A bound socket.

    Raises:
        InputError: the address is taken, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    own = socket.socket(family, socket.SOCK_STREAM)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        own.bind((host, port))
        own.listen(_BACKLOG)
    except (OSError, OverflowError, TypeError, ValueError) as error:
        own.close()
        fix = "choose another --port, or 0 for any free one"
        raise InputError(f"cannot listen on {host}: {error}", key="--port", value=port, fix=fix) from error
    own.set_inheritable(True)
    return own


def run(services: Sequence[Service]) -> None:
    """Serve until SIGINT or SIGTERM, and stop: gracefully at the first, at once at the second."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_serve(services))


async def _serve(services: Sequence[Service]) -> None:
    stopping, hard = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        (hard if stopping.is_set() else stopping).set()

    grace_s = max(service.settings.grace_s for service in services)
    signals = StopSignals(lambda: loop.call_soon_threadsafe(stop), grace_s)
    try:
        await _until(services, stopping, hard)
    finally:
        signals.close()


async def _until(services: Sequence[Service], stopping: asyncio.Event, hard: asyncio.Event) -> None:
    tasks = [asyncio.create_task(service.serve()) for service in services]
    failed = await _start(services, stopping)
    gc.collect()
    gc.freeze()  # or collections would walk models and libraries again and again
    if not failed:
        waiting = asyncio.create_task(stopping.wait())
        failing = [asyncio.create_task(service.broken()) for service in services]
        await asyncio.wait([waiting, *tasks, *failing], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        for task in failing:
            task.cancel()
    for service in services:
        service.stop()
    await _drain(tasks, hard, max(service.settings.grace_s for service in services))
    for backend in (one for service in services for one in service.backends.values()):
        await backend.stop()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(_FLUSH_S)
    for result in [failed, *results]:
        if isinstance(result, BaseException):
            raise result
    for backend in (one for service in services for one in service.backends.values()):
        if backend.failure and backend.ends_with_failure:
            end = Timer(_FAILED_S, os._exit, (1,))  # should the device hold up the end of the interpreter
            end.daemon = True
            end.start()
            raise SystemExit(1)  # its log says why


async def _start(services: Sequence[Service], stopping: asyncio.Event) -> BaseException | None:
    try:
        for service in services:
            await service.start()
    except BaseException as error:
        stopping.set()
        return error
    return None


async def _drain(tasks: Sequence[asyncio.Task[None]], hard: asyncio.Event, grace_s: float) -> None:
    """Wait for open responses, until the time is up or a second signal comes."""
    impatient = asyncio.create_task(_wait(hard))
    responses = asyncio.create_task(_all(tasks))
    await asyncio.wait({impatient, responses}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
    impatient.cancel()


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
