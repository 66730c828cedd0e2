"""Sampled mutation testing (`make mutants`): how many small mistakes the test suite notices.

    .venv/bin/python tests/mutants/mutants.py --sample 300 --seed 1

Each mutant is one change to one module of `PARTS`, in a copy of the checkout. First all tests run once, in an
instrumented copy: which of them execute which blocks is kept beside `--out`. Then the tests that execute the
changed place run, the closest and fastest first, until one fails, in forks of a process that has imported the
libraries. What has been found is kept in `--out` after every mutant, and the same call goes on from there.
Mutants that change nothing observable are listed in `equivalent.txt`, each with its reason. Prints the seed,
the score with its 95 % interval, and the survivors.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import islice
from math import inf, sqrt
from pathlib import Path
from queue import SimpleQueue
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from blocks import HITS
from operators import Mutation, compiles, mutations
from reach import MARKS, Blocks, Reach
from selection import Selection
from server import KILLED, SURVIVES, UNDECIDED

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "cluster", "latency", "metrics", "planning", "traces")
COPIED = ("blis_py", "engine", "tests", "profiles", "workloads", "docs", "benchmarks", "training")
FILES = ("pyproject.toml", "README.md", "constraints.txt", "Makefile")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
HANGS_S = 120
"""No test takes so long."""
REACH_LIMIT_S = 3600
SLOW_S = 0.25
CLOSEST = 6
"""Files of tests tried before all others."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no checkout behind
    options, until = _options(), time.monotonic()
    until += options.stop_after_s
    sources = {_module(path): path.read_bytes() for part in PARTS for path in _sources(part)}
    every = [mutation for module, source in sources.items() for mutation in mutations(module, source)]
    chosen = list(islice(_shuffled(every, sources, options.seed), options.sample))
    print(f"seed {options.seed}: {len(chosen)} of {len(every):,} mutants", flush=True)
    chosen = [mutation for mutation in chosen if options.only in mutation.name]
    out, blocks = Path(options.out), Blocks(sources)
    done, equivalent = _read(out), _equivalent()
    reach = Reach(out.with_suffix(".reach.jsonl"), sources, ROOT)
    campaign = Campaign(sources, blocks, reach, options.own)
    if not campaign.measured(until):
        print("stopped while measuring what the tests execute; the same call goes on")
        return 0
    missing = [mutation for mutation in chosen if mutation.name not in {**done, **equivalent}]
    with ExitStack() as stack, out.open("a") as log:
        for _ in range(options.workers):
            campaign.servers.put(stack.enter_context(_server(options.stranger, options.limit_s)))
        pool = ThreadPoolExecutor(options.workers)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # before the servers are closed

        def tested(mutation: Mutation) -> str | None:
            return campaign.killer(mutation) if time.monotonic() < until else None

        for mutation, killer in zip(missing, pool.map(tested, missing), strict=True):
            if killer is not None:
                done[mutation.name] = killer
                print(json.dumps([mutation.name, killer]), file=log, flush=True)
                ends = "SURVIVES" if not killer else "?" if killer == UNDECIDED else "killed"
                print(f"{ends:8} {mutation.name}", flush=True)
    return _report(
        [mutation for mutation in chosen if mutation.name in {**done, **equivalent}], done, equivalent
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="number of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--only", default="", help="those of the sample whose name contains this")
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument("--limit-s", type=float, default=600, help="CPU time for one mutant (default: 600)")
    parser.add_argument("--stop-after-s", type=float, default=inf, help="the same call goes on from there")
    parser.add_argument("--out", default="mutants.jsonl", help="what has been found (default: mutants.jsonl)")
    parser.add_argument("--own", action="store_true", help="only tests of the mutated part: a lower bound")
    parser.add_argument("--stranger", action="store_true", help="without the folder `shared`")
    return parser.parse_args()


def _sources(part: str) -> list[Path]:
    return sorted((ROOT / "blis_py" / part).rglob("*.py"))


def _shuffled(every: list[Mutation], sources: dict[str, bytes], seed: int) -> Iterator[Mutation]:
    """Those that are Python."""
    for mutation in Random(seed).sample(every, len(every)):
        if compiles(mutation.applied(sources[mutation.module])):
            yield mutation


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _read(out: Path) -> dict[str, str]:
    out.parent.mkdir(parents=True, exist_ok=True)
    return dict(map(json.loads, out.read_text().splitlines())) if out.exists() else {}


def _equivalent() -> dict[str, str]:
    """Reasons by name; a line of the file has both, with a tab between them."""
    lines = EQUIVALENT.read_text(encoding="utf-8").splitlines()
    return dict(line.split("\t") for line in lines if line and not line.startswith("#"))


# -- the tests -----------------------------------------------------------------------------------------------


class Server:
    """A warm process, and a checkout in which one mutant at a time is tested."""

    def __init__(self, root: Path, limit_s: float) -> None:
        self.root, self._limit_s = root, limit_s
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
        environment = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        environment |= {"TMPDIR": str(self.root.parent), "BLIS_INTERPRETED": "1", HITS.upper(): ""}
        if "reach" in more:
            environment[HITS.upper()] = str(self.root.parent / "marks")
        job = {"root": str(self.root), "files": files, "tests": tests or [], "environment": environment}
        job |= {
            "limit_s": self._limit_s,
            "hangs_s": HANGS_S,
            "scratch": str(self.root.parent / "scratch"),
            **more,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(job), file=self._process.stdin, flush=True)
        verdict, test = json.loads(self._process.stdout.readline())
        return verdict, test

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()

    @contextmanager
    def changed(self, module: str, source: bytes) -> Iterator[None]:
        """With another source of a module."""
        path = self.root.joinpath(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        before = path.read_bytes()
        for old in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            old.unlink()
        path.write_bytes(source)
        try:
            yield
        finally:
            path.write_bytes(before)


class Campaign:
    """The tests of every mutant, in the order in which they are likely to fail.

    Args:
        own: only tests of the mutated part.
    """

    def __init__(self, sources: dict[str, bytes], blocks: Blocks, reach: Reach, own: bool) -> None:
        self._sources, self._blocks, self._reach, self._own = sources, blocks, reach, own
        self._selection = Selection(ROOT)
        self.servers: SimpleQueue[Server] = SimpleQueue()

    def measured(self, until: float) -> bool:
        """Run all tests once, in an instrumented checkout; returns whether that is done in time."""
        files = self._reach.missing([str(path.relative_to(ROOT)) for path in self._selection.tests])
        if not files:
            return True
        with ExitStack() as stack:
            server = stack.enter_context(_server(False, REACH_LIMIT_S))
            (server.root / f"{HITS}.py").write_text(MARKS, encoding="utf-8")
            for module in self._sources:
                stack.enter_context(server.changed(module, self._blocks.instrumented(module)))
            for file in files:
                if time.monotonic() > until:
                    return False
                self._measure(server, file)
        return True

    def _measure(self, server: Server, file: str) -> None:
        marks, out = server.root.parent / "marks", server.root.parent / "reach.json"
        marks.write_bytes(bytes(self._blocks.count))
        out.unlink(missing_ok=True)
        server.run([file], reach=str(out))
        self._reach.add(file, json.loads(out.read_text()) if out.exists() else [])
        print(f"measured {file}", flush=True)

    def killer(self, mutation: Mutation) -> str:
        """The test that fails because of it; empty = none does."""
        server = self.servers.get()
        try:
            with server.changed(mutation.module, mutation.applied(self._sources[mutation.module])):
                for tests in filter(None, self._stages(mutation)):  # no tests would mean all of them
                    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
                    verdict, test = server.run(files, tests)
                    if verdict != SURVIVES:
                        return test if verdict == KILLED else UNDECIDED
            return ""
        finally:
            self.servers.put(server)

    def _stages(self, mutation: Mutation) -> Iterator[list[str]]:
        """Cheap tests of the closest files first, then the others that execute the place."""
        files = self._selection.of(mutation.module, self._own)
        block, rank = self._blocks.of(mutation), {file: place for place, file in enumerate(files)}
        if block < 0:
            found = [one for file in files for one in self._reach.tests.get(file, []) if one.passes]
        else:
            found = [one for one in self._reach.of(block) if not self._own or one.file in rank]
        found.sort(key=lambda one: (one.cost_s > SLOW_S, rank.get(one.file, len(rank)), one.cost_s))
        close = set(list(dict.fromkeys(one.file for one in found))[:CLOSEST])
        first = [one.test for one in found if one.cost_s <= SLOW_S and one.file in close]
        yield first
        yield [one.test for one in found if one.test not in set(first)]


@contextmanager
def _server(stranger: bool, limit_s: float) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="blis-mutants-") as home:
        server = Server(_copied(Path(home), stranger), limit_s)
        try:
            yield server
        finally:
            server.close()


def _copied(home: Path, stranger: bool) -> Path:
    """A checkout in a folder of its own, with `shared` beside it unless it is that of a stranger."""
    root = home / "checkout"
    for folder in COPIED:
        left_out = shutil.ignore_patterns("__pycache__", "*.so", "cpython-*")
        shutil.copytree(ROOT / folder, root / folder, ignore=left_out)
    for file in FILES:
        shutil.copy(ROOT / file, root)
    shared = ROOT.parent / "shared"
    if shared.is_dir() and not stranger:
        (home / "shared").symlink_to(shared)
    return root


# -- the report ----------------------------------------------------------------------------------------------


def _report(chosen: list[Mutation], done: dict[str, str], equivalent: dict[str, str]) -> int:
    known = [mutation for mutation in chosen if mutation.name in equivalent]
    open_ = [mutation for mutation in chosen if done.get(mutation.name) == UNDECIDED]
    tested = [mutation for mutation in chosen if mutation.name not in equivalent and mutation not in open_]
    survivors = [mutation for mutation in tested if not done[mutation.name]]
    killed = len(tested) - len(survivors)
    low, high = wilson(killed, len(tested))
    print(f"\n{killed} of {len(tested)} killed: {killed / max(1, len(tested)):.1%} ({low:.1%} to {high:.1%})")
    print(f"{len(open_)} not decided in time; {len(known)} equivalent; {len(survivors)} survivors:")
    for mutation in survivors:
        print(f"  {mutation.module}, line {mutation.line}, {mutation.where}:")
        print(f"    {mutation.old!r} -> {mutation.new!r} in {mutation.place}")
    return 0


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
