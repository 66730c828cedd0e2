"""Replaces a result again and again, in processes that are stopped at random calls. For test_stopping.py.

    python stopped_saves.py FOLDER HOW SEED

HOW is a signal; `aside`, SIGKILL on a system that cannot exchange two folders; or `full`, a limit on the size
of files in place of a full disk. Prints what was wrong with what was found afterwards, and how many processes
were stopped before they had done.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from blis_py.api import run
from blis_py.outputs import exchange, stopping
from blis_py.outputs.complete import check_complete
from blis_py.outputs.places import writable
from blis_py.outputs.unfinished import PREFIX
from blis_py.result import Result

TRIALS = 40
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}


def with_every_call(action: Callable[[], None]) -> None:
    """Acts before every call of something that is not Python: whatever touches files is one."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            action()

    sys.setprofile(profile)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class Trials:
    """One folder, two results that take turns in it."""

    def __init__(self, home: Path, how: str, seed: int) -> None:
        lengths = {"output_tokens": 30, "output_tokens_stdev": 9}
        self.results = [run(model="qwen3-14b", num_requests=40, rate=4, seed=n, **lengths) for n in (1, 2)]
        self.wanted = [files(self.save(result, home / f"wanted{n}")) for n, result in enumerate(self.results)]
        self.home, self.folder = home / "here", home / "here" / "out"
        self.save(self.results[0], self.folder)
        self.calls = 0
        with_every_call(self.count)
        self.save(self.results[0], self.folder)
        sys.setprofile(None)
        self.calls_of_a_save = self.calls
        self.there = 0
        self.signal = None if how == "full" else signal.SIGKILL if how == "aside" else signal.Signals[how]
        if how == "aside":
            exchange._exchanged = lambda one, other: False  # type: ignore[assignment]
        self.rng = np.random.default_rng(seed)
        self.wrong: list[str] = []
        self.ends: Counter[str] = Counter()

    def save(self, result: Result, folder: Path) -> Path:
        return result.save(folder, force=True, plots=False, itl=True)

    def trial(self) -> None:
        limit = int(self.rng.integers(0, 2 * max(map(len, self.wanted[0].values()))))
        most = int(1.2 * self.calls_of_a_save)
        fewest = self.calls_of_a_save - 100 if self.rng.random() < 0.5 else 0  # where folders are exchanged
        self.calls, self.last = 0, int(self.rng.integers(fewest, fewest + 150 if fewest else most))
        child = os.fork()
        if child == 0:
            self.replace(limit)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        stopped = code != 0
        self.ends["stopped" if stopped else "done"] += 1
        if stopped and code != (7 if self.signal is None else CODES[self.signal]):
            self.wrong.append(f"exit code {code}")
        self.look(stopped)

    def replace(self, limit: int) -> None:
        """In a process of its own."""
        sys.dont_write_bytecode = True  # what is cut off would be read by others
        if self.signal is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        else:
            with_every_call(self.stop)
        try:
            self.save(self.results[1 - self.there], self.folder)
        except OSError as error:
            os._exit(7 if str(error.filename).startswith(str(self.folder)) else 8)
        sys.setprofile(None)
        os._exit(0)

    def count(self) -> None:
        self.calls += 1

    def stop(self) -> None:
        self.calls += 1
        if self.calls == self.last:
            assert self.signal is not None
            os.kill(os.getpid(), self.signal)

    def look(self, stopped: bool) -> None:
        """At what is there now: one of the two results, as a whole, and nothing else."""
        left = set(os.listdir(self.home)) - {"out"}
        if self.signal is signal.SIGKILL:
            self.ends["left something"] += bool(left)
            if not all(name.startswith(PREFIX) for name in left):
                self.wrong.append(f"left {left}")
            writable(self.folder, force=True)  # what the next run does first
            left = set(os.listdir(self.home)) - {"out"}
        if left:
            self.wrong.append(f"left {left}")
        found = files(self.folder)
        if found not in self.wanted:
            self.wrong.append(f"a mixture: {sorted(found)}")
        elif not stopped and found != self.wanted[1 - self.there]:
            self.wrong.append("the former result, though the new one was saved")
        check_complete(self.folder)
        self.there = self.wanted.index(found)


def main(home: str, how: str, seed: str) -> None:
    stopping.listen()
    trials = Trials(Path(home), how, int(seed))
    for _ in range(TRIALS):
        trials.trial()
    print(json.dumps({"wrong": trials.wrong, **trials.ends}))


if __name__ == "__main__":
    main(*sys.argv[1:])
