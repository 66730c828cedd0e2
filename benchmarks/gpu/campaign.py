"""Runs jobs of measurements on a GPU, each within its time, and leaves what they found in one folder.

    PYTHONPATH=. python benchmarks/gpu/campaign.py [JOB...] --out DIR [--given DIR] [--wheels DIR]

`make gpu` calls it; docs/gpu.md describes what the jobs and the files are. A job ends by itself: its parts
are stopped when their time is over, and have written row by row what they found by then. Whatever ends the
campaign leaves that, too, and the same command with the same DIR (or with what was in it as `--given`) goes
on where it stopped. The folder is made to be brought home: few files of modest size, two folders down.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import caches
from jobs import DEFAULT, JOBS, ROOT, SCRIPTS, Job, Part
from process import ENDING_S, Ended, run
from rows import RESULTS, Rows

from engine.revision import revision

LOG = "log.txt"
PACKING_S = 6.0
"""Kept of a job for what comes behind its last part."""
WITHIN_S = 20.0
"""Reserve, of the time of a part that receives its limit as an argument, to begin and to end."""
MIN_S = 10.0
"""With less time than that no part is begun."""
MAX_FILES, MAX_BYTES = 8, 16 << 20
"""What can be brought home."""
_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass
class Campaign:
    """Where it runs, and its settings."""

    out: Path
    cache: Path
    device: str
    python: str
    again: tuple[str, ...]
    packages: Path | None = None
    """Folder of packages that this interpreter lacks."""

    def __post_init__(self) -> None:
        self.stopped = 0
        """The signal that stopped it."""
        self.rows = Rows(self.out, "campaign", {"gpu": gpu_name(self.device), "revision": revision()})
        further = [os.environ.get("PYTHONPATH"), self.packages and str(self.packages)]
        paths = [str(ROOT), *filter(None, further)]
        self.environment = {
            **os.environ,
            **caches.environment(self.cache),
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
        }
        self.packed = caches.content(self.cache)

    def stop(self, number: int, frame: Any) -> None:
        """A signal handler."""
        self.stopped = number

    def run_job(self, name: str) -> list[tuple[str, str, float]]:
        """Its parts, one after another; name, state and seconds of each."""
        job, lines = JOBS[name], []
        ends_s = time.monotonic() + job.limit_s - PACKING_S
        print(f"== job {name}, {job.limit_s:.0f} s: {job.brings}", flush=True)
        for part in self.parts_of(job):
            state, seconds = self.run_part(name, part, ends_s)
            lines.append((part.name, state, seconds))
            if self.stopped or state == "no GPU":
                break
        self.pack()
        return lines

    def parts_of(self, job: Job) -> Iterator[Part]:
        for part in job.parts:
            if self.device == "cuda" or part.on_cpu is not None:
                yield part

    def run_part(self, job: str, part: Part, ends_s: float) -> tuple[str, float]:
        """State and seconds."""
        before = self.rows.before(part.name)
        if before is not None and part.name not in self.again:
            print(f"-- {part.name}: done before", flush=True)
            return "done before", 0.0
        limit_s = min(part.limit_s, ends_s - time.monotonic() - ENDING_S)
        if limit_s < MIN_S:
            print(f"-- {part.name}: no time left", flush=True)
            return "no time left", 0.0
        print(f"-- {part.name}, {limit_s:.0f} s at most", flush=True)
        ended = self.process(part, limit_s)
        state = "no GPU" if "there is no CUDA device here" in ended.tail else ended.state
        row = {"job": job, "state": state, "seconds": round(ended.seconds, 1), "exit_status": ended.code}
        if state == "done":
            self.rows.add(part.name, row)
        else:
            self.rows.note(part.name, {**row, "error": state})
        print(f"-- {part.name}: {state} after {ended.seconds:.0f} s", flush=True)
        if part.compiles:
            self.pack()
        return state, ended.seconds

    def process(self, part: Part, limit_s: float) -> Ended:
        command = part.command if self.device == "cuda" else part.on_cpu
        assert command is not None
        places = {"seconds": f"{max(limit_s - WITHIN_S, 1):.0f}", "cores": str(os.cpu_count() or 1)}
        arguments = [argument.format(**places) if "{" in argument else argument for argument in command]
        if command[0].startswith(SCRIPTS):
            arguments += ["--device", self.device, "--out", str(self.out)]
        with (self.out / LOG).open("a", encoding="utf-8") as log:
            log.write(f"\n==== {part.name}: {' '.join(arguments)}\n")
        return run(
            [self.python, *arguments],
            environment=self.environment,
            folder=ROOT,
            log=self.out / LOG,
            limit_s=limit_s,
            interrupted=lambda: self.stopped != 0,
        )

    def pack(self) -> None:
        """Compiled kernels, if there are others than before."""
        there = caches.content(self.cache)
        if there != self.packed:
            print(caches.pack(self.cache, self.out), flush=True)
            self.packed = there


def gpu_name(device: str) -> str:
    """The name of the GPU, without torch, which would take some of its memory."""
    if device == "cpu":
        return device
    command = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0")
    try:
        report = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return device
    return report.strip() or device


def install(wheels: Path, python: str, folder: Path) -> Path | None:
    """Unpack the wheels of a folder for an interpreter, from nowhere else; None where pip refuses them."""
    files = sorted(map(str, wheels.glob("*.whl")))
    command = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    command += ["--no-deps", "--no-compile", "--upgrade", "--target", str(folder), *files]
    if files and subprocess.run(command, check=False).returncode == 0:
        return folder
    print(f"{wheels}: no wheels that could be installed; going on without", file=sys.stderr)
    return None


def bring(given: Path, out: Path) -> None:
    """What an earlier campaign left, where this one goes on; what is here already stays."""
    for path in sorted(given.rglob("*")):
        target = out / path.relative_to(given)
        if path.is_file() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def problems(out: Path) -> list[str]:
    """What of the folder could not be brought home."""
    files = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    found = [f"{len(files)} files, {MAX_FILES} can be brought home"] if len(files) > MAX_FILES else []
    for path in files:
        if len(path.parts) > 3 or not all(_NAME.fullmatch(part) for part in path.parts):
            found.append(f"{path}: too far down, or an odd name")
        if (size := (out / path).stat().st_size) > MAX_BYTES:
            found.append(f"{path}: {size:,} bytes, {MAX_BYTES:,} can be brought home")
    return found


def main() -> int:
    options = _options()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.given is not None:
        bring(options.given, out)
    if unpacked := caches.unpack(out, options.cache):
        print(unpacked, flush=True)
    cache = options.cache.resolve()
    packages = options.wheels and install(options.wheels, options.python, cache / "packages")
    again = tuple(options.again)
    campaign = Campaign(out, cache, options.device, options.python, again, packages)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, campaign.stop)
    lines = []
    for name in options.job:
        lines += campaign.run_job(name)
        if campaign.stopped or (lines and lines[-1][1] == "no GPU"):
            break
    _summary(lines, out, options.job)
    if campaign.stopped:
        return 128 + campaign.stopped
    return int(any(not state.startswith("done") for _, state, _ in lines))


def _summary(parts: list[tuple[str, str, float]], out: Path, jobs: list[str]) -> None:
    """The last lines, which are all that some places keep."""
    paths = [part.command[0] for job in jobs for part in JOBS[job].parts]
    try:
        import gpu_tables

        results = gpu_tables.gathered([out]).only({Path(path).stem for path in paths})
        print(gpu_tables.draw(results, only_measured=True))
    except Exception as error:  # no table is worth the rest
        print(f"no tables: {error!r}", file=sys.stderr)
    for name, state, seconds in parts:
        print(f"{name:20} {state:14} {seconds:6.0f} s")
    files = sorted(path for path in out.rglob("*") if path.is_file())
    print(f"{out}: " + ", ".join(f"{p.relative_to(out)} {p.stat().st_size:,}" for p in files))
    for problem in problems(out):
        print(f"cannot be brought home: {problem}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "job", nargs="*", default=DEFAULT, help=f"default: {' '.join(DEFAULT)}, in this order"
    )
    parser.add_argument("--out", type=Path, required=True, help=f"folder for {RESULTS} and the rest")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to unpack for the parts")
    parser.add_argument("--given", type=Path, help="what an earlier campaign left in its folder")
    parser.add_argument("--cache", type=Path, default=ROOT / "build" / "gpu-cache", help="compiled kernels")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the parts")
    parser.add_argument("--again", nargs="+", default=[], help="parts to run although they were done")
    options = parser.parse_args()
    for name in options.job:
        if name not in JOBS:
            parser.error(f"no job {name!r}: there are {', '.join(JOBS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
