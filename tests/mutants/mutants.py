"""Sampled mutation testing (`make mutants`): how many small mistakes the test suite notices.

    .venv/bin/python tests/mutants/mutants.py --sample 300 --seed 1

Each mutant is one change to one module of `PARTS`, in a copy of the checkout. First all tests run once, in
an instrumented copy: which of them execute which blocks is kept beside `--out`. Then the tests that execute
the changed place run, whole runs of `tests/golden/battery` first, then the closest and fastest, until one
fails, in forks of a process that has imported everything: a changed function takes the place of its original
in memory, and only a change outside functions takes an import. Those that read files of the folder `shared`
beside the checkout run last, so that one call says, too, what a stranger's clone notices. A failed test
counts if it passes where nothing is changed; a mutant that only hangs, or does not import, counts neither
way. What has been found is kept in `--out`
after every mutant; the same call goes on from there, and `--again` tests those once more that have not been
killed. Mutants that change nothing observable are in `equivalent.txt`, each with its reason. Prints the
seed, the score with its 95 % interval, and the survivors.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import islice
from math import inf, sqrt
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import yaml

sys.path.insert(0, str(Path(__file__).parent))

from blocks import HITS
from operators import Mutation, compiles, mutations
from reach import MARKS, Blocks, Reach, Reached
from selection import Selection
from server import BROKEN, HANGS, KILLED, SURVIVES

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "cluster", "latency", "metrics", "planning", "traces")
COPIED = ("blis_py", "engine", "tests", "profiles", "workloads", "docs", "benchmarks", "training")
FILES = ("pyproject.toml", "README.md", "constraints.txt", "Makefile")
BY_HAND = Path(__file__).with_name("by_hand.yaml")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
HANGS_S = 120
"""No test takes so long."""
REACH_LIMIT_S = 3600
SLOW_S = 0.25
SECOND_NS = 10**9
CONSTANTS = "tests/core/test_constants.py"
"""What notices most changes outside functions."""
CLOSEST = 6
"""Files of tests tried before all others."""
TOGETHER = 20
FIRST_RUNS = 15
"""Runs of the battery before any other test."""
MAX_RUNS = 60
"""Runs of the battery for one mutant."""
LONG_RUN_S = 0.4
THOROUGH = ("random.txt", "drawn.txt")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no checkout behind
    options, until = _options(), time.monotonic()
    until += options.stop_after_s
    sources = {_module(path): path.read_bytes() for part in PARTS for path in _sources(part)}
    blocks = Blocks(dict(sources))
    if options.by_hand:
        every = chosen = list(_by_hand(sources))
    else:
        inside = {module: source for module, source in sources.items() if module.startswith(options.inside)}
        every = [mutation for module, source in inside.items() for mutation in mutations(module, source)]
        chosen = list(islice(_shuffled(every, sources, options.seed), options.sample))
        print(f"seed {options.seed}: {len(chosen)} of {len(every):,} mutants", flush=True)
    chosen = [mutation for mutation in chosen if options.only in mutation.name]
    out = Path(options.out)
    found, equivalent = _read(out), _equivalent()
    reach = Reach(out.with_suffix(".reach.jsonl"), blocks.names, ROOT)
    campaign = Campaign(sources, blocks, reach, options.own, options.battery)
    if not campaign.measured(until):
        print("stopped while measuring what the tests execute; the same call goes on")
        return 0
    done = {name for name, one in found.items() if not (options.again and one.verdict in (SURVIVES, HANGS))}
    missing = [mutation for mutation in chosen if mutation.name not in {*done, *equivalent}]
    with ExitStack() as stack, out.open("a") as log:
        for _ in range(options.workers if missing else 0):
            campaign.servers.put(stack.enter_context(_server(options.limit_s)).warmed())
        pool = ThreadPoolExecutor(options.workers)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # before the servers are closed

        def tested(mutation: Mutation) -> Found | None:
            return campaign.tested(mutation) if time.monotonic() < until else None

        for mutation, one in zip(missing, pool.map(tested, missing), strict=True):
            if one is not None:
                found[mutation.name] = one
                print(json.dumps([mutation.name, *one]), file=log, flush=True)
                print(f"{one.verdict:8} {mutation.name}", flush=True)
    report = Report([one for one in chosen if one.name in {**found, **equivalent}], found, equivalent)
    report.show()
    if options.results:
        report.save(Path(options.results), options.seed, len(every), options.limit_s)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="number of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument(
        "--inside",
        type=lambda text: tuple(text.split(",")),
        default=("",),
        help="draw the sample from modules whose names begin so, such as blis_py.core.,blis_py.cluster",
    )
    parser.add_argument("--only", default="", help="those of the sample whose name contains this")
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument(
        "--limit-s",
        type=float,
        default=60,
        help="CPU time of its tests, after which a mutant has survived (default: 60)",
    )
    parser.add_argument("--stop-after-s", type=float, default=inf, help="the same call goes on from there")
    parser.add_argument("--out", default="mutants.jsonl", help="what has been found (default: mutants.jsonl)")
    parser.add_argument("--own", action="store_true", help="only tests of the mutated part: a lower bound")
    parser.add_argument("--battery", action="store_true", help="only the whole runs: seconds, a lower bound")
    parser.add_argument("--by-hand", action="store_true", help=f"those of {BY_HAND.name} instead of a sample")
    parser.add_argument("--again", action="store_true", help="test those once more that have not been killed")
    parser.add_argument("--results", help="file of scores by seed, such as benchmarks/results/mutants.json")
    return parser.parse_args()


def _sources(part: str) -> list[Path]:
    return sorted((ROOT / "blis_py" / part).rglob("*.py"))


def _shuffled(every: list[Mutation], sources: dict[str, bytes], seed: int) -> Iterator[Mutation]:
    """Those that are Python, in an order that a change of other code does not change."""
    for mutation in sorted(every, key=lambda one: sha256(f"{seed} {one.name}".encode()).digest()):
        if compiles(mutation.applied(sources[mutation.module])):
            yield mutation


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _by_hand(sources: dict[str, bytes]) -> Iterator[Mutation]:
    """Mistakes that are written down, with the sources of their modules."""
    for given in yaml.safe_load(BY_HAND.read_text(encoding="utf-8")):
        module, old = given["module"], given["old"].encode()
        source = sources.setdefault(module, _path(ROOT, module).read_bytes())
        if source.count(old) != 1:
            print(f"no longer there, or not alone: {given['mistake']}")
            continue
        start = source.index(old)
        line = source[:start].count(b"\n") + 1
        end = start + len(old)
        yield Mutation(module, "", line, start, end, given["old"], given["new"], given["mistake"])


class Found(NamedTuple):
    """What came of a mutant."""

    verdict: str
    test: str = ""
    """The one that fails or hangs."""
    shared: bool = False
    """Whether that reads files of the folder `shared`."""


def _path(root: Path, module: str) -> Path:
    path = root.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _read(out: Path) -> dict[str, Found]:
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = out.read_text().splitlines() if out.exists() else []
    return {name: Found(*rest) for name, *rest in map(json.loads, lines)}


def _equivalent() -> dict[str, str]:
    """Reasons by name; a line of the file has both, with a tab between them."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


# -- the tests -----------------------------------------------------------------------------------------------


class Server:
    """A warm process, and a checkout in which one mutant at a time is tested."""

    def __init__(self, root: Path, limit_s: float) -> None:
        self.root, self._limit_s, self._changes = root, limit_s, 0
        self.used_s = 0.0
        """Since a mutant's tests began."""
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, files: list[str], tests: list[str] | None = None, **more: str) -> tuple[str, str]:
        """Verdict, and the test it is about.

        Args:
            tests: those of the files that run, in this order; None = all.
            more: `reach`: the file that gets what each test executes.
        """
        environment = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": "1"}
        environment |= {"TMPDIR": str(self.root.parent), "BLIS_INTERPRETED": "1", HITS.upper(): ""}
        if "reach" in more:
            environment[HITS.upper()] = str(self.root.parent / "marks")
        job = {"root": str(self.root), "files": files, "tests": tests or [], "environment": environment}
        job |= {
            "limit_s": self._limit_s - self.used_s,
            "hangs_s": HANGS_S,
            "scratch": str(self.root.parent / "scratch"),
            **more,
        }
        return self._answer(job)

    def warmed(self) -> Server:
        """With the package imported, to change single functions of it."""
        self._answer({"root": str(self.root), "warm": True})
        return self

    def _answer(self, job: dict[str, object]) -> tuple[str, str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        verdict, test, used_s = json.loads(self._process.stdout.readline())
        self.used_s += used_s
        return verdict, test

    @property
    def is_late(self) -> bool:
        """Whether a mutant has had its time."""
        return self.used_s >= self._limit_s

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    @contextmanager
    def changed(self, module: str, source: bytes) -> Iterator[None]:
        """With another source of a module, and a time of change that no bytecode has that is kept."""
        path = _path(self.root, module)
        before, at_ns = path.read_bytes(), path.stat().st_mtime_ns
        self._changes += 1
        self.used_s = 0.0
        path.write_bytes(source)
        os.utime(path, ns=(at_ns, at_ns + self._changes * SECOND_NS))
        try:
            yield
        finally:
            path.write_bytes(before)
            os.utime(path, ns=(at_ns, at_ns))


class Campaign:
    """The tests of every mutant, in the order in which they are likely to fail.

    Args:
        own: only tests of the mutated part.
        battery_only: only the whole runs of the battery.
    """

    def __init__(
        self, sources: dict[str, bytes], blocks: Blocks, reach: Reach, own: bool, battery_only: bool
    ) -> None:
        self._sources, self._blocks, self._reach, self._own = sources, blocks, reach, own
        self._battery_only = battery_only
        self._sound: dict[str, bool] = {}
        """Tests that have failed, and whether they pass where nothing is changed."""
        self._selection = Selection(ROOT)
        self.servers: SimpleQueue[Server] = SimpleQueue()

    def measured(self, until: float) -> bool:
        """Run all tests once, in an instrumented checkout; returns whether that is done in time."""
        tests = [] if self._battery_only else [str(path.relative_to(ROOT)) for path in self._selection.tests]
        files = self._reach.missing([*self._selection.runs, *tests])
        if not files:
            return True
        with ExitStack() as stack:
            server = stack.enter_context(_server(REACH_LIMIT_S))
            (server.root / f"{HITS}.py").write_text(MARKS, encoding="utf-8")
            for module in self._blocks.modules:
                stack.enter_context(server.changed(module, self._blocks.instrumented(module)))
            for file in files:
                if time.monotonic() > until:
                    return False
                self._measure(server, file)
        return True

    def _measure(self, server: Server, file: str) -> None:
        marks, out = server.root.parent / "marks", server.root.parent / "reach.json"
        marks.write_bytes(bytes(len(self._blocks.names)))
        out.unlink(missing_ok=True)
        server.run([file], reach=str(out))
        server.used_s = 0.0
        self._reach.add(file, json.loads(out.read_text()) if out.exists() else [])
        print(f"measured {file}", flush=True)

    def tested(self, mutation: Mutation) -> Found:
        server, unsound = self.servers.get(), set[str]()
        try:
            while True:
                found = self._first(server, mutation, unsound)
                if found.verdict != KILLED or self._passes_unchanged(server, found.test):
                    return found
                unsound.add(found.test)
        finally:
            self.servers.put(server)

    def _first(self, server: Server, mutation: Mutation, unsound: set[str]) -> Found:
        """What the first test that decides says."""
        hangs = Found(SURVIVES)
        with server.changed(mutation.module, mutation.applied(self._sources[mutation.module])):
            for shared, tests in self._stages(mutation):
                chosen = [test for test in tests if test not in unsound]
                if not chosen or server.is_late:  # no tests would mean all of them
                    continue
                verdict, test = server.run(_files(chosen), chosen, module=mutation.module)
                if verdict in (KILLED, BROKEN):
                    return Found(verdict, test, shared)
                if verdict == HANGS:
                    hangs = Found(HANGS, test, shared)
        return hangs

    def _passes_unchanged(self, server: Server, test: str) -> bool:
        if test not in self._sound:
            used_s, server.used_s = server.used_s, 0.0
            self._sound[test] = server.run(_files([test]), [test])[0] == SURVIVES
            server.used_s = used_s
        return self._sound[test]

    def _stages(self, mutation: Mutation) -> Iterator[tuple[bool, list[str]]]:
        """Some whole runs, cheap tests close by, further runs, others; what reads `shared` comes last."""
        files = self._selection.of(mutation.module, self._own)
        block, rank = self._blocks.of(mutation), {file: place for place, file in enumerate(files)}
        found = [one for one in self._reach.of(block) if not self._own or one.file in rank]
        if not found:  # executed when it is imported
            yield False, [one.test for one in self._reach.tests.get(CONSTANTS, [])]
            files = [*self._selection.runs, *files]
            found = [one for file in files for one in self._reach.tests.get(file, []) if one.passes]
        runs = sorted((one for one in found if one.file in self._selection.runs), key=_mixed)
        yield False, [one.test for one in runs[:FIRST_RUNS]]
        if not self._battery_only:
            tests = [one for one in found if one.file not in self._selection.runs]
            tests.sort(
                key=lambda one: (one.shared, one.cost_s > SLOW_S, rank.get(one.file, len(rank)), one.cost_s)
            )
            close = [one for one in tests if not one.shared and one.cost_s <= SLOW_S]
            files = list(dict.fromkeys(one.file for one in close))[:CLOSEST]
            close = [one for one in close if one.file in files]
            yield False, [one.test for one in close]
        yield False, [one.test for one in sorted(runs[FIRST_RUNS:], key=_cost_s)[: MAX_RUNS - FIRST_RUNS]]
        if self._battery_only:
            return
        tests = [one for one in tests if one not in close]
        for shared in (False, True):
            for slow in (False, True):
                chosen = [one for one in tests if one.shared == shared and (one.cost_s > SLOW_S) == slow]
                for some in _batched(list(dict.fromkeys(one.file for one in chosen))):
                    yield shared, [one.test for one in chosen if one.file in some]


def _mixed(run: Reached) -> tuple[bool, bool, bytes]:
    """Runs of which everything is compared, then all others; kinds take turns, the long ones come last."""
    is_thorough = run.file.endswith(THOROUGH)
    return run.cost_s > LONG_RUN_S, not is_thorough, sha256(run.test.encode()).digest()


def _cost_s(run: Reached) -> float:
    return run.cost_s


def _batched(files: list[str]) -> Iterator[set[str]]:
    """The closest files, and the others in groups, since reading all of them takes its time."""
    yield set(files[:CLOSEST])
    for begin in range(CLOSEST, len(files), TOGETHER):
        yield set(files[begin : begin + TOGETHER])


def _files(tests: list[str]) -> list[str]:
    return list(dict.fromkeys(test.partition("::")[0] for test in tests))


@contextmanager
def _server(limit_s: float) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="blis-mutants-") as home:
        server = Server(_copied(Path(home)), limit_s)
        try:
            yield server
        finally:
            server.close()


def _copied(home: Path) -> Path:
    """A checkout in a folder of its own, with `shared` beside it if there is one."""
    root = home / "checkout"
    for folder in COPIED:
        left_out = shutil.ignore_patterns("__pycache__", "*.so", "cpython-*")
        shutil.copytree(ROOT / folder, root / folder, ignore=left_out)
    for file in FILES:
        shutil.copy(ROOT / file, root)
    shared = ROOT.parent / "shared"
    if shared.is_dir():
        (home / "shared").symlink_to(shared)
    return root


# -- the report ----------------------------------------------------------------------------------------------


class Report:
    """The score of a sample.

    Args:
        chosen: those that are tested.
        equivalent: reasons by name.
    """

    def __init__(self, chosen: list[Mutation], found: dict[str, Found], equivalent: dict[str, str]) -> None:
        self._chosen, self._found, self._equivalent = chosen, found, equivalent
        self.equivalent = [one for one in chosen if one.name in equivalent]
        self.killed, self.survivors = self._those(KILLED), self._those(SURVIVES)
        self.hanging, self.broken = self._those(HANGS), self._those(BROKEN)
        self.by_shared = [one for one in self.killed if found[one.name].shared]
        self.counted = len(self.killed) + len(self.survivors)

    def _those(self, verdict: str) -> list[Mutation]:
        tested = (one for one in self._chosen if one.name not in self._equivalent)
        return [one for one in tested if self._found[one.name].verdict == verdict]

    def show(self) -> None:
        print(f"\n{_share(len(self.killed), self.counted)} are killed")
        print(f"{_share(len(self.killed) - len(self.by_shared), len(self.killed))} of these without `shared`")
        left_out = f"{len(self.equivalent)} are equivalent, {len(self.hanging)} only hang"
        print(f"not counted: {left_out}, {len(self.broken)} do not import; {len(self.survivors)} survivors:")
        for mutation in self.survivors:
            print(f"  {mutation.module}, line {mutation.line}, {mutation.where}:")
            print(f"    {mutation.old!r} -> {mutation.new!r} in {mutation.place}")

    def save(self, path: Path, seed: int, of: int, limit_s: float) -> None:
        """Add to a file of scores by seed."""
        scores = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        low, high = wilson(len(self.killed), self.counted)
        scores[f"seed {seed}"] = {
            "mutants": of,
            "sample": len(self._chosen),
            "cpu_s_for_a_mutant": limit_s,
            "killed": len(self.killed),
            "of": self.counted,
            "score": round(len(self.killed) / max(1, self.counted), 4),
            "interval_95": [round(low, 4), round(high, 4)],
            "killed_only_by_tests_that_read_shared": [one.name for one in self.by_shared],
            "survivors": [one.name for one in self.survivors],
            "equivalent": [one.name for one in self.equivalent],
            "only_hanging": [one.name for one in self.hanging],
            "not_importable": [one.name for one in self.broken],
        }
        path.write_text(json.dumps(scores, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _share(part: int, of: int) -> str:
    low, high = wilson(part, of)
    return f"{part} of {of}, {part / max(1, of):.1%} ({low:.1%} to {high:.1%}),"


def wilson(killed: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share."""
    if not of:
        return 0.0, 1.0
    z, share = 1.96, killed / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return middle - half, middle + half


if __name__ == "__main__":
    sys.exit(main())
