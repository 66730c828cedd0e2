"""Sampled mutation testing (`make mutants`): how many small mistakes the test suite notices.

    .venv/bin/python tests/mutants/mutants.py --sample 300 --seed 1

Each mutant is one change to one module of `PARTS`, in a copy of the checkout; the tests that import the
module run on interpreted sources, slow ones last, until one fails. What has been found is kept in `--out`
after every mutant, and the same call goes on from there. Mutants that change nothing observable are listed in
`equivalent.txt`, each with its reason. Prints the seed, the score with its 95 % interval, and the survivors.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import sqrt
from pathlib import Path
from queue import SimpleQueue
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

from operators import Mutation, compiles, mutations
from selection import Selection

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("core", "cluster", "latency", "metrics", "planning", "traces")
COPIED = ("blis_py", "engine", "tests", "profiles", "workloads", "docs", "benchmarks", "training")
FILES = ("pyproject.toml", "README.md", "constraints.txt", "Makefile")
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
UNDECIDED = "not decided"
"""The tests took longer than `--limit-s`, and none had failed."""
HANGS_S = 120
"""No test takes so long."""


def main() -> int:
    options = _options()
    sources = {_module(path): path.read_bytes() for part in PARTS for path in _sources(part)}
    every = [mutation for module, source in sources.items() for mutation in mutations(module, source)]
    chosen = list(islice(_shuffled(every, sources, options.seed), options.sample))
    print(f"seed {options.seed}: {len(chosen)} of {len(every):,} mutants", flush=True)
    chosen = [mutation for mutation in chosen if options.only in mutation.name]
    out = Path(options.out)
    done = _read(out)
    equivalent = _equivalent()
    missing = [mutation for mutation in chosen if mutation.name not in {**done, **equivalent}]
    with _checkouts(options) as checkouts, ThreadPoolExecutor(options.workers) as pool, out.open("a") as log:
        for mutation, killer in zip(missing, pool.map(checkouts.killer, missing), strict=True):
            done[mutation.name] = killer
            print(json.dumps([mutation.name, killer]), file=log, flush=True)
            ends = "SURVIVES" if not killer else "?" if killer == UNDECIDED else "killed"
            print(f"{ends:8} {mutation.name}", flush=True)
    return _report(chosen, done, equivalent)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=300, help="number of mutants (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="of the sample (default: 1)")
    parser.add_argument("--only", default="", help="those of the sample whose name contains this")
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time (default: 1)")
    parser.add_argument("--limit-s", type=float, default=600, help="for one mutant (default: 600)")
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


@dataclass
class Checkout:
    """A copy in which one mutant at a time is tested."""

    root: Path
    limit_s: float
    sound: dict[str, bool] = field(default_factory=dict)
    """Whether a test passes where nothing is changed."""

    def killer(self, mutation: Mutation, tests: list[str]) -> str:
        """The test that fails because of it; empty = none does."""
        path = self._path(mutation.module)
        source = path.read_bytes()
        skipped: list[str] = []
        while True:
            path.write_bytes(mutation.applied(source))
            try:
                failed = self._failed(path, tests, skipped, "not slow") or self._failed(
                    path, tests, skipped, "slow"
                )
            finally:
                path.write_bytes(source)
            if failed in ("", UNDECIDED) or self._is_sound(path, failed):
                return failed
            skipped.append(failed)

    def _path(self, module: str) -> Path:
        path = self.root.joinpath(*module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")

    def _is_sound(self, path: Path, test: str) -> bool:
        name = test.removeprefix("hangs in ")
        if name not in self.sound:
            self.sound[name] = not self._failed(path, [name], [], "")
        return self.sound[name]

    def _failed(self, changed: Path, tests: list[str], skipped: list[str], marks: str) -> str:
        for old in (changed.parent / "__pycache__").glob(f"{changed.stem}.*"):
            old.unlink()
        flags = ["-x", "-v", "--tb=no", "-p", "no:cacheprovider", "-m", marks, "-p", "no:xdist"]
        flags += ["-o", f"faulthandler_timeout={HANGS_S}", "-o", "faulthandler_exit_on_timeout=true"]
        flags += [f"--deselect={test}" for test in skipped]
        command = [sys.executable, "-m", "pytest", *flags, *tests]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command,
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=self.limit_s,
            )
        except subprocess.TimeoutExpired:
            return UNDECIDED
        return _killer(done.stdout, done.returncode)


def _killer(printed: str, code: int) -> str:
    if code in (0, 5):
        return ""
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+(?: .*?)?)(?: - |$)", printed, re.MULTILINE):
        return failed[1]
    started = re.findall(r"^(tests/\S+)", printed, re.MULTILINE)
    return f"hangs in {started[-1]}" if started else "does not start"


class Checkouts:
    def __init__(self, free: SimpleQueue[Checkout], selection: Selection, own: bool) -> None:
        self._free, self._selection, self._own = free, selection, own

    def killer(self, mutation: Mutation) -> str:
        checkout = self._free.get()
        try:
            return checkout.killer(mutation, self._selection.of(mutation.module, self._own))
        finally:
            self._free.put(checkout)


@contextmanager
def _checkouts(options: argparse.Namespace) -> Iterator[Checkouts]:
    free: SimpleQueue[Checkout] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(options.workers):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="blis-mutants-")))
            free.put(Checkout(_copied(home, options.stranger), options.limit_s))
        yield Checkouts(free, Selection(ROOT), options.own)


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
