"""Feeds thousands of bad files to every reader and command: `make fuzz`; see `--help`.

Each reader or command runs in a process of its own, so that one that dies by a signal is seen, and goes on
with the next file. Inputs that end badly are kept in the folder given by `--keep`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("BLIS_INTERPRETED", "1")

import judge
import mutate
import scenario
from flags import arguments as odd_arguments
from targets import COMMANDS, READERS

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
FLAGS = "odd flags"
NAMES = (*READERS, *COMMANDS, FLAGS)
_MEMORY_BYTES = 6 << 30
"""A reader that asks for more asks for too much."""


def main() -> int:
    options = _options()
    if options.worker is not None:
        return _work(options)
    chosen = [name for name in NAMES if options.only in name]
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        base = scenario.build(Path(scratch) / "base")
        for name in chosen:
            counts = Counter(_known(options.state).get(name, {}))
            if not counts:
                counts = _in_processes(name, base, Path(scratch), options)
                _remember(options.state, name, counts)
            total += counts
            print(f"{name:34} {_counts_text(counts)}", flush=True)
    print(f"{'all':34} {_counts_text(total)}")
    return int(set(total) - {"fine", "refused"} != set())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000, help="for each reader and command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="readers and commands whose name contains this")
    parser.add_argument("--keep", default="fuzz-failures", help="folder for inputs that end badly")
    parser.add_argument("--state", type=Path, help="file of the readers and commands that are done")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--base", help=argparse.SUPPRESS)
    parser.add_argument("--start", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _known(state: Path | None) -> dict[str, dict[str, int]]:
    """What earlier calls came to."""
    return json.loads(state.read_text()) if state and state.exists() else {}


def _remember(state: Path | None, name: str, counts: Counter[str]) -> None:
    if state:
        new = state.with_suffix(".new")
        new.write_text(json.dumps(_known(state) | {name: counts}))
        new.replace(state)


def _counts_text(counts: Counter[str]) -> str:
    return f"{sum(counts.values()):7,} inputs: " + ", ".join(
        f"{n:,} {end}" for end, n in sorted(counts.items())
    )


# -- the process that watches ----------------------------------------------------------------------------


def _in_processes(name: str, base: Path, scratch: Path, options: argparse.Namespace) -> Counter[str]:
    counts: Counter[str] = Counter()
    start, log = 0, scratch / "log"
    while start < options.inputs:
        log.write_text("")
        command = [sys.executable, __file__, "--worker", name, "--base", str(base), "--keep", options.keep]
        command += ["--inputs", str(options.inputs), "--seed", str(options.seed), "--start", str(start)]
        with log.open("w") as out:
            code = subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=False).returncode
        ends = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("[")]
        counts.update(end for _, end in ends)
        start = ends[-1][0] + 1 if ends else start
        if code:
            died = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            counts[died] += 1
            print(f"{name}: input {start} dies by {died}", flush=True)
            start += 1
    return counts


# -- the process that works ------------------------------------------------------------------------------


def _work(options: argparse.Namespace) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "files"
        shutil.copytree(options.base, folder)
        os.chdir(scratch)
        os.environ["TMPDIR"] = tempfile.tempdir = scratch  # for reports of crashes, too
        for index in range(options.start, options.inputs):
            rng = Random(f"{options.seed} {options.worker} {index}")
            verdict = _one(options.worker, folder, Path(options.base), index, rng)
            print(json.dumps([index, verdict.end]), flush=True)
            if not verdict.good:
                _keep(options, index, folder, verdict)
    return 0


def _one(name: str, folder: Path, base: Path, index: int, rng: Random) -> judge.Verdict:
    """The first inputs are the files of the corpus, those after them mutations of a good one."""
    if name == FLAGS:
        return judge.of_command(odd_arguments(rng, folder))
    target = READERS.get(name) or COMMANDS[name]
    good = (base / target.file).read_bytes()
    bad = CORPUS[index].read_bytes() if index < len(CORPUS) else mutate.mutated(rng, good, target.file)
    (folder / target.file).write_bytes(bad)
    try:
        if name in READERS:
            return judge.of_reader(lambda: READERS[name].read(folder))
        return judge.of_command(COMMANDS[name].arguments(folder), codes=COMMANDS[name].codes)
    finally:
        if not (folder / target.file).exists():
            (folder / target.file).write_bytes(good)


def _keep(options: argparse.Namespace, index: int, folder: Path, verdict: judge.Verdict) -> None:
    keep = Path(options.keep)
    keep.mkdir(parents=True, exist_ok=True)
    stem = f"{options.worker.replace(' ', '-').replace(',', '')}-{options.seed}-{index}"
    (keep / f"{stem}.txt").write_text(
        f"{verdict.end}\n{verdict.detail}\n", encoding="utf-8", errors="replace"
    )
    target = READERS.get(options.worker) or COMMANDS.get(options.worker)
    if target is not None:
        shutil.copy(folder / target.file, keep / f"{stem}{Path(target.file).suffix}")


if __name__ == "__main__":
    sys.exit(main())
