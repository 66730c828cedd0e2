"""The dress rehearsal of a campaign, on a machine without a GPU.

    python benchmarks/gpu/rehearsal.py --to DIR [--python PYTHON] [--job JOB...]

A copy of the tree without its repository, packages missing that the GPU's machine does not have, and the
calls of `jobs.CALLS`, each as on a machine of its own: under `timeout`, no kernel compiled, a fresh folder
that is given what the call before left; the last one without make. Then what one would bring home is read
back. It ends with exit code 0 if every part was done and in order, the files can be brought home, tables are
drawn and a profile is fitted.

`--python` names the interpreter of the campaign: one with the versions of the machine it is rehearsed for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from campaign import problems
from gpu_tables import gathered
from jobs import CALL_S, CALLS, JOBS, ROOT
from rows import read_rows

MISSING = ("pydantic", "simpy", "xgrammar")
"""Packages that a machine with a GPU has no use for."""
_NO_SUCH = "raise ModuleNotFoundError(f'No module named {__name__!r}, as on the machine', name=__name__)\n"


def export(target: Path) -> None:
    """The files of this tree that belong to it, without a repository."""
    command = ("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def block(folder: Path) -> None:
    """Packages that cannot be imported, for the beginning of the search path."""
    for name in MISSING:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(_NO_SUCH, encoding="utf-8")


@dataclass(frozen=True)
class Machine:
    """Where calls run."""

    tree: Path
    blocked: Path
    python: str


def with_make(call: list[str], out: Path, given: Path | None, python: str) -> list[str]:
    command = ["make", "--no-print-directory", "gpu", f"JOB={' '.join(call)}", f"OUT={out}"]
    return [*command, "GPU_DEVICE=cpu", f"GPU_PYTHON={python}", *([f"GIVEN={given}"] if given else [])]


def without_make(call: list[str], out: Path, given: Path | None, python: str) -> list[str]:
    command = [python, "benchmarks/gpu/campaign.py", *call, "--out", str(out), "--device", "cpu"]
    return [*command, *(["--given", str(given)] if given else [])]


def run_call(machine: Machine, command: list[str]) -> int:
    """One call on a machine without compiled kernels; exit status, 124 or 137 if it did not end by itself."""
    tree, blocked = machine.tree, machine.blocked
    shutil.rmtree(tree / "build", ignore_errors=True)
    command = ["timeout", "--kill-after=10", str(CALL_S), *command]
    ours = ("GPU_", "MAKE", "MFLAGS", "TRITON_INTERPRET")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment = kept | {"PYTHONPATH": f".:{blocked}", "GPU_REVISION": "rehearsal", "OMP_NUM_THREADS": "1"}
    environment["GIT_CEILING_DIRECTORIES"] = str(tree.parent)
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


def run_calls(calls: list[list[str]], folder: Path, machine: Machine) -> tuple[list[str], Path]:
    """What went wrong, and what the last call left."""
    found, out = [], None
    for number, call in enumerate(calls, start=1):
        given, out = out, folder / f"out-{number}"
        command = (without_make if number == len(calls) else with_make)(call, out, given, machine.python)
        if code := run_call(machine, command):
            found.append(f"jobs {' '.join(call)}: exit status {code}")
    assert out is not None
    return found, out


def read_back(out: Path, target: Path) -> int:
    """What came home, into a folder of its own."""
    script = Path(__file__).with_name("bring_home.py")
    return subprocess.run(
        [sys.executable, str(script), str(out), "--into", str(target)], check=False
    ).returncode


def shortcomings(out: Path, brought: Path, jobs: list[str]) -> list[str]:
    """What the campaign should have brought home and did not."""
    found = problems(out)
    parts = gathered([out]).rows.get("campaign", {})
    for part in (part for job in jobs for part in JOBS[job].parts if part.on_cpu is not None):
        state = parts.get(part.name, {}).get("state", "never begun")
        if state != "done":
            found.append(f"{part.name}: {state}")
    tables = (brought / "benchmarks/results/gpu/cpu/README.md").read_text(encoding="utf-8")
    order = [row["key"] for row in read_rows(out) if row["script"] == "campaign" and "state" in row]
    planned = [part.name for job in jobs for part in JOBS[job].parts if part.on_cpu is not None]
    if order != planned:
        found.append(f"the parts ran in the order {', '.join(order)}, not {', '.join(planned)}")
    if "Rehearsed on a CPU" not in tables:
        found.append("the tables do not say that they are of a rehearsal")
    fits = [path for path in brought.glob("profiles/fits/*/*/profile.yaml") if "\nfit:" in path.read_text()]
    if "D" in jobs and not fits:
        found.append("no profile was fitted")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=Path, required=True, help="folder, which may not exist yet")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the campaign")
    parser.add_argument("--job", nargs="+", choices=JOBS, default=list(JOBS))
    options = parser.parse_args()
    folder = options.to.resolve()
    if folder.exists():
        print(f"{folder} is there already: remove it, or choose another --to", file=sys.stderr)
        return 2
    tree, blocked, brought = (folder / name for name in ("tree", "blocked", "brought"))
    export(tree)
    block(blocked)
    calls = [call for jobs in CALLS if (call := [name for name in jobs if name in options.job])]
    found, out = run_calls(calls, folder, Machine(tree, blocked, options.python))
    if read_back(out, brought):
        found.append("what came home could not be read")
    else:
        found += shortcomings(out, brought, [name for call in calls for name in call])
    for line in found:
        print(f"rehearsal: {line}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
