"""Child processes in which engines' schedulers run, apart from ours and from everything installed."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from benchmarks.engines.scenario import Failure, Scenario, Trace

BARE = (sys.executable, "-I", "-S", "-B")
"""A Python without site-packages, environment variables or the current folder."""
_MAX_BYTES = 4 << 30
_READY_S = 600
_REPLY_S = 900
"""Limits far beyond that of a scenario, see `child_loop`, on a machine that others use, too."""


class ChildError(Exception):
    """A child process ended, or did not answer in time."""


class Child:
    """An engine's scheduler in a process of its own; a context manager.

    Args:
        program: script that serves scenarios, see `child_loop.serve`.
        root: folder with the engine's package, its first argument.
        python: interpreter.
        max_bytes: limit on its address space, the second argument.

    Raises:
        ChildError: it does not start.
    """

    def __init__(
        self, program: Path, root: Path, python: Sequence[str] = BARE, max_bytes: int = _MAX_BYTES
    ) -> None:
        command = [*python, str(program), str(root), str(max_bytes)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.about: dict[str, Any] = self._reply(_READY_S)
        """What it says of the release."""

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def send(self, scenario: Scenario) -> None:
        """Have it run a scenario; one at a time.

        Raises:
            ChildError: it has ended.
        """
        try:
            self._stdin.write(json.dumps(scenario) + "\n")
            self._stdin.flush()
        except OSError as error:
            raise ChildError(self._last_words()) from error

    def receive(self) -> Trace:
        """The trace of the scenario that was sent.

        Raises:
            ChildError: it has ended, or takes too long.
        """
        reply = self._reply(_REPLY_S)
        return Failure(error=reply["error"], where=reply["where"]) if isinstance(reply, dict) else reply

    @property
    def _stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _reply(self, timeout_s: float) -> Any:
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], timeout_s)[0]:
            self._process.kill()
            raise ChildError(f"no answer within {timeout_s} s")
        line = out.readline()
        if not line:
            raise ChildError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self._process.kill()
        _, words = self._process.communicate()
        return f"the process ended: {words.strip()[-1500:]}"
