"""Which tests execute which blocks: found by running them once in an instrumented checkout."""

from __future__ import annotations

import json
import mmap
import os
import sys
import zlib
from base64 import b85decode, b85encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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
        self.names: list[str] = []
        """The same as long as the function is the same, whatever stands around it."""
        for module, found in self._blocks.items():
            self._first[module] = len(self.names)
            inside: Counter[str] = Counter()
            for block in found:
                self.names.append(f"{module}{block.function}#{inside[block.function]}")
                inside[block.function] += 1

    @property
    def modules(self) -> list[str]:
        return list(self._blocks)

    def of(self, mutation: Mutation) -> str:
        """Name of the block it is in; empty = executed at import, or in another part."""
        if mutation.module not in self._blocks:
            return ""
        number = innermost(self._blocks[mutation.module], mutation.line)
        return "" if number < 0 else self.names[self._first[mutation.module] + number]

    def instrumented(self, module: str) -> bytes:
        return instrumented(self._sources[module], self._first[module])


@dataclass(frozen=True)
class Reached:
    """What one test executes."""

    test: str
    cost_s: float
    passes: bool
    shared: bool
    """Whether it opens files of the folder `shared` beside the checkout."""
    hits: bytes
    """A byte a block."""

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    def as_list(self) -> list[object]:
        return [
            self.test,
            self.cost_s,
            self.passes,
            self.shared,
            b85encode(zlib.compress(self.hits)).decode(),
        ]

    @classmethod
    def read(cls, test: str, cost_s: float, passes: bool, shared: bool, hits: str) -> Reached:
        return cls(test, cost_s, passes, shared, zlib.decompress(b85decode(hits)))


class Recorded:
    """Plugin of pytest in an instrumented checkout: writes what each test executes, and what it costs.

    What an import or a fixture of several tests executes and reads counts for all tests of the file.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._found: list[Reached] = []
        self._shared = bytearray()
        self._passes = True
        self._reads, self._all_read = False, False
        self._marks: mmap.mmap = import_module(HITS).HITS
        sys.addaudithook(self._opened)

    def _opened(self, event: str, of: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and "shared/" in str(of[0]):
            self._reads = True

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before, read_before = bytes(self._marks), self._reads
        self._clear()
        yield
        inside = bytes(self._marks)
        if fixturedef.scope != "function":
            self._shared[:] = _union(self._shared or bytes(len(inside)), inside)
            self._all_read = self._all_read or self._reads
        self._reads = self._reads or read_before
        self._marks[:] = _union(before, inside)

    @contextmanager
    def run(self, test: str) -> Iterator[None]:
        """Of a test that is none of pytest's."""
        self._clear()
        before_s = _used_s()
        yield
        self._found.append(Reached(test, round(_used_s() - before_s, 3), True, False, bytes(self._marks)))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._clear()
        self._passes, before_s = True, _used_s()
        yield
        cost_s = round(_used_s() - before_s, 3)
        reads = self._reads or "shared_data" in item.fixturenames
        self._found.append(Reached(item.nodeid, cost_s, self._passes, reads, bytes(self._marks)))

    def pytest_collection_finish(self) -> None:
        """What is executed and read by then, at imports, counts for all tests of the file."""
        self._all_read = self._reads
        self._shared[:] = bytes(self._marks)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._passes = self._passes and not report.failed

    def pytest_sessionfinish(self) -> None:
        shared = bytes(self._shared) or bytes(len(self._marks))
        for one in self._found:
            one.__dict__["hits"] = _union(one.hits, shared)
            one.__dict__["shared"] = one.shared or self._all_read
        self._out.write_text(json.dumps([one.as_list() for one in self._found]))

    def _clear(self) -> None:
        self._reads = False
        self._marks[:] = bytes(len(self._marks))


def _union(one: bytes | bytearray, other: bytes) -> bytes:
    number = int.from_bytes(one, "big") | int.from_bytes(other, "big")
    return number.to_bytes(len(other), "big")


def _used_s() -> float:
    return sum(os.times()[:4])


def _places(names: list[str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        found.setdefault(name, []).append(place)
        found.setdefault(name.partition("#")[0], []).append(place)
    return found


class Reach:
    """What all tests execute, kept in a file: a line for each file of tests, below one with the blocks.

    Kept as long as the file of tests is the same. Of a changed function of the product the blocks may be
    others: then the tests of the whole function stand in.

    Args:
        names: of the blocks.
    """

    def __init__(self, out: Path, names: list[str], root: Path) -> None:
        self._out, self._root, self._names = out, root, names
        self._written: list[str] = []
        self.tests: dict[str, list[Reached]] = {}
        self._places: dict[str, dict[str, list[int]]] = {}
        """By file, the places of blocks and of whole functions in its tests' hits."""
        places: dict[str, list[int]] = {}
        for line in out.read_text().splitlines() if out.exists() else ():
            file, key, found = json.loads(line)
            if not file:
                self._written, places = found, _places(found)
            elif (root / file).exists() and key == self._key(file):
                self._keep(file, found, places)

    def missing(self, files: list[str]) -> list[str]:
        return [file for file in files if file not in self.tests]

    def add(self, file: str, found: list[list[Any]]) -> None:
        with self._out.open("a") as log:
            if self._written != self._names:
                print(json.dumps(["", "", self._names]), file=log)
                self._written = self._names
            print(json.dumps([file, self._key(file), found]), file=log, flush=True)
        self._keep(file, found, _places(self._names))

    def of(self, block: str) -> list[Reached]:
        """The passing tests that execute a block, or if none does, its function."""
        return self._with(block) or self._with(block.partition("#")[0])

    def _with(self, name: str) -> list[Reached]:
        found = []
        for file, tests in self.tests.items():
            places = self._places[file].get(name, ())
            found += [one for one in tests if one.passes and any(one.hits[place] for place in places)]
        return found

    def _keep(self, file: str, found: list[list[Any]], places: dict[str, list[int]]) -> None:
        self.tests[file], self._places[file] = [Reached.read(*one) for one in found], places

    def _key(self, file: str) -> str:
        return sha256((self._root / file).read_bytes()).hexdigest()[:16]
