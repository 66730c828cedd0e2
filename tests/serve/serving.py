"""Backends behind the app, in one process and without a port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import httpx

from blis_py.api import configure
from blis_py.config.models import RunConfig
from blis_py.serve.app import make_app
from blis_py.serve.backend import Backend
from blis_py.serve.fleet.build import FleetOptions, ServedFleet, build_fleet
from blis_py.serve.settings import ServeSettings

HANGS_S = 3000
"""Only what hangs takes so long, however busy the machine is."""
FAST = FleetOptions(speedup=200.0, max_requests=500)


@cache
def config(**settings: Any) -> RunConfig:
    if "file" in settings:
        return configure(settings.pop("file"), **settings)
    return configure(**{"model": "qwen3-14b", "gpu": "h100", **settings})


@asynccontextmanager
async def client_of(
    backend: Backend, settings: ServeSettings | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the app in front of a started backend."""
    settings = settings or ServeSettings(admin=True)
    transport = httpx.ASGITransport(make_app(backend, settings), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://blis") as client:
        yield client


Use = Callable[[httpx.AsyncClient, ServedFleet], Awaitable[None]]


def with_fleet(use: Use, settings: ServeSettings | None = None, **options: Any) -> ServedFleet:
    """Use a fleet of one or more instances; returns it stopped."""
    cluster = options.pop("cluster", {})
    fleet = build_fleet(config(**cluster), replace(FAST, **options))

    async def run() -> None:
        await fleet.backend.start()
        async with client_of(fleet.backend, settings) as client:
            await use(client, fleet)
        await fleet.backend.stop()

    asyncio.run(asyncio.wait_for(run(), HANGS_S))
    return fleet


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, which ends with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]
