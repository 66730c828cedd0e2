"""`plan` behind the page: a process of its own, whose messages become lines of JSON.

No module of the simulation is imported here, or its process could not use native code.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from blis_py import native

native.activate()  # for worker processes, which import this first; the configuration imports native modules

from blis_py.errors import InputError  # noqa: E402
from blis_py.planning.orphans import end_with  # noqa: E402

if TYPE_CHECKING:
    from blis_py.config.models import RunConfig

Json = dict[str, Any]
_POLL_S, _NICENESS = 0.2, 10


def search(pipe: Any, base: RunConfig, folder: Path, request: Json, parent_pid: int) -> None:
    """The process: a plan, message by message."""
    end_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_NICENESS)
    from blis_py.ui.searching import searched

    try:
        pipe.send({"done": searched(base, folder, request, pipe.send)})
    except InputError as error:
        pipe.send({"refused": str(error)})
    except Exception as error:
        pipe.send({"failed": f"{type(error).__name__}: {error}"})


async def stream(
    base: RunConfig, folder: Path, request: Json, gone: Callable[[], Awaitable[bool]]
) -> AsyncIterator[bytes]:
    """The messages of a plan as lines of JSON; its process ends when the client leaves."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=search, args=(theirs, base, folder, request, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    try:
        while not await gone():
            if not ours.poll():
                if not process.is_alive() and not ours.poll():
                    yield _line({"failed": "the process of the plan died"})
                    return
                await anyio.sleep(_POLL_S)
                continue
            try:
                message = ours.recv()
            except EOFError:
                yield _line({"failed": "the process of the plan died"})
                return
            yield _line(message)
            if message.keys() & {"done", "refused", "failed"}:
                return
    finally:
        process.terminate()
        ours.close()


def _line(message: Json) -> bytes:
    return json.dumps(message).encode() + b"\n"
