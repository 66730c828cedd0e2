"""The dress rehearsal of a campaign, on a machine without a GPU.

    python benchmarks/gpu/rehearsal.py --to DIR [--python PYTHON] [--job JOB...]

A copy of the tree without its repository, packages missing that the GPU's machine does not have, an empty
folder for the results, every job under `timeout`; then what one would bring home is read back. It ends with
exit code 0 if every part was done, the files can be brought home, tables are drawn and a profile is fitted.

`--python` names the interpreter of the campaign: one with the versions of the machine it is rehearsed for.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from campaign import problems
from gpu_tables import gathered
from jobs import JOBS, ROOT

MISSING = ("pydantic", "simpy")
"""Packages that a machine with a GPU has no use for."""
_NO_SUCH = "raise ModuleNotFoundError(f'No module named {__name__!r}, as on the machine', name=__name__)\n"
_GRACE_S = 30
"""A job has to end by itself: so much later it is stopped, and that is a failure."""


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


def run_job(name: str, tree: Path, blocked: Path, out: Path, python: str) -> int:
    """One job as somebody would call it; its exit status, 124 or 137 if it did not end by itself."""
    limit_s = JOBS[name].limit_s + _GRACE_S
    command = ["timeout", "--kill-after=10", str(limit_s), "make", "--no-print-directory", "gpu"]
    command += [f"JOB={name}", f"OUT={out}", "GPU_DEVICE=cpu", f"GPU_PYTHON={python}"]
    ours = ("GPU_", "MAKE", "MFLAGS", "TRITON_INTERPRET")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment = kept | {"PYTHONPATH": str(blocked), "GPU_REVISION": "rehearsal", "OMP_NUM_THREADS": "1"}
    environment["GIT_CEILING_DIRECTORIES"] = str(tree.parent)
    return subprocess.run(command, cwd=tree, env=environment, check=False).returncode


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
    tree, blocked, out, brought = (folder / name for name in ("tree", "blocked", "out", "brought"))
    export(tree)
    block(blocked)
    out.mkdir()
    found = []
    for name in options.job:
        code = run_job(name, tree, blocked, out, options.python)
        if code:
            found.append(f"job {name}: exit status {code}")
    if read_back(out, brought):
        found.append("what came home could not be read")
    else:
        found += shortcomings(out, brought, options.job)
    for line in found:
        print(f"rehearsal: {line}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
