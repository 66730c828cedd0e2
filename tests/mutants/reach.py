"""Which tests execute which blocks: found by running them once in an instrumented checkout."""

from __future__ import annotations

import json
import mmap
import os
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from blocks import HITS, blocks, innermost, instrumented
from operators import Mutation

MARKS = f'''"""Marks of executed blocks, shared with the processes that a test starts."""

import mmap
import os

_FILE = os.environ.get("{HITS.upper()}")
if _FILE:
    with open(_FILE, "r+b") as _file:
        HITS = mmap.mmap(_file.fileno(), 0)
else:
    HITS = bytearray(1 << 16)
'''


class Blocks:
    """The blocks of all modules, numbered through.

    Args:
        sources: by module.
    """

    def __init__(self, sources: dict[str, bytes]) -> None:
        self._sources = sources
        self._blocks = {module: blocks(source) for module, source in sources.items()}
        self._first: dict[str, int] = {}
        self.count = 0
        for module, found in self._blocks.items():
            self._first[module] = self.count
            self.count += len(found)

    def of(self, mutation: Mutation) -> int:
        """Number of the block it is in; -1 = executed at import."""
        number = innermost(self._blocks[mutation.module], mutation.line)
        return number if number < 0 else self._first[mutation.module] + number

    def instrumented(self, module: str) -> bytes:
        return instrumented(self._sources[module], self._first[module])


@dataclass(frozen=True)
class Reached:
    """What one test executes."""

    test: str
    cost_s: float
    passes: bool
    hits: bytes
    """A byte a block."""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    def as_list(self) -> list[object]:
        return [self.test, self.cost_s, self.passes, b85encode(zlib.compress(self.hits)).decode()]

    @classmethod
    def read(cls, test: str, cost_s: float, passes: bool, hits: str) -> Reached:
        return cls(test, cost_s, passes, zlib.decompress(b85decode(hits)))


class Recorded:
    """Plugin of pytest in an instrumented checkout: writes what each test executes, and what it costs.

    What a fixture of several tests executes counts for all tests of the file.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._found: list[Reached] = []
        self._shared = bytearray()
        self._passes = True
        self._marks: mmap.mmap = import_module(HITS).HITS

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = bytes(self._marks)
        self._clear()
        yield
        inside = bytes(self._marks)
        if fixturedef.scope != "function":
            self._shared[:] = _union(self._shared or bytes(len(inside)), inside)
        self._marks[:] = _union(before, inside)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._clear()
        self._passes, before_s = True, _used_s()
        yield
        cost_s = round(_used_s() - before_s, 3)
        self._found.append(Reached(item.nodeid, cost_s, self._passes, bytes(self._marks)))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._passes = self._passes and not report.failed

    def pytest_sessionfinish(self) -> None:
        shared = bytes(self._shared) or bytes(len(self._marks))
        for one in self._found:
            one.__dict__["hits"] = _union(one.hits, shared)
        self._out.write_text(json.dumps([one.as_list() for one in self._found]))

    def _clear(self) -> None:
        self._marks[:] = bytes(len(self._marks))


def _union(one: bytes | bytearray, other: bytes) -> bytes:
    number = int.from_bytes(one, "big") | int.from_bytes(other, "big")
    return number.to_bytes(len(other), "big")


def _used_s() -> float:
    return sum(os.times()[:4])


class Reach:
    """What all tests execute, kept in a file: a line for each file of tests.

    Args:
        sources: of the mutated modules; after a change of one all tests run again.
    """

    def __init__(self, out: Path, sources: dict[str, bytes], root: Path) -> None:
        self._out, self._root = out, root
        self._sources = sha256(b"".join(sources.values())).hexdigest()[:16]
        self.tests: dict[str, list[Reached]] = {}
        if out.exists():
            for line in out.read_text().splitlines():
                file, key, found = json.loads(line)
                if (root / file).exists() and key == self._key(file):
                    self.tests[file] = [Reached.read(*one) for one in found]

    def missing(self, files: list[str]) -> list[str]:
        return [file for file in files if file not in self.tests]

    def add(self, file: str, found: list[list[Any]]) -> None:
        self.tests[file] = [Reached.read(*one) for one in found]
        with self._out.open("a") as log:
            print(json.dumps([file, self._key(file), found]), file=log, flush=True)

    def of(self, block: int) -> list[Reached]:
        """The tests that execute a block, and pass where nothing is changed."""
        every = (one for found in self.tests.values() for one in found)
        return [one for one in every if one.passes and one.hits[block]]

    def _key(self, file: str) -> str:
        return f"{self._sources}-{sha256((self._root / file).read_bytes()).hexdigest()[:16]}"
