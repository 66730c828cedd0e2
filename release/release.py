"""Builds wheels, and runs each where nothing of this checkout can be found (`make release`).

    python release/release.py [--python python3.11 python3.12 python3.13] [--out dist] [--check-tag]

For every interpreter that is there: a wheel, with native code where there is a C compiler; what is in it; a
fresh environment with this wheel alone and the versions of `constraints.txt`; and a run from another folder,
which has to come to the same bytes under all of them. Uploads nothing. `--check-tag` refuses a commit whose
tag is not `v` and the version, and a version without a section in CHANGELOG.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
TOP_LEVEL = {"blis_py", "engine"}
"""The packages that the wheel installs."""
LARGEST_MB = 6
RUN = ("run", "--workload", "mixed-slo", "--model", "qwen3-14b", "--num-requests", "200", "--format", "json")


def main() -> int:
    options = _options()
    version = _version()
    problems = _of_tag(version) if options.check_tag else []
    found = [path for python in options.python if (path := _path(python))]
    if not found:
        problems.append(f"none of {', '.join(options.python)} is there")
    digests = {}
    for python in found:
        wheel = build(python, options.out)
        problems += [f"{wheel.name}: {problem}" for problem in contents(wheel)]
        digests[python] = run(python, wheel)
        print(
            f"{python}: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, run {digests[python]}", flush=True
        )
    if len(set(digests.values())) > 1:
        problems.append(f"runs differ: {digests}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def build(python: str, out: Path) -> Path:
    """The wheel that this interpreter builds."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = {name: text for name, text in os.environ.items() if name != "HATCH_BUILD_NO_HOOKS"}
        environment["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
        _call(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", scratch, ROOT, env=environment)
        (wheel,) = Path(scratch).glob("*.whl")
        out.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, out))


def contents(wheel: Path) -> list[str]:
    """What is wrong with what it would install."""
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    places = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    found = []
    if places != TOP_LEVEL:
        found.append(f"installs {', '.join(sorted(places))}, not {', '.join(sorted(TOP_LEVEL))}")
    if any("checkpoints/" in name for name in names):
        found.append("has checkpoints in it")
    if "blis_py/py.typed" not in names:
        found.append("has no py.typed")
    if wheel.name.endswith("-none-any.whl") and shutil.which("cc"):
        found.append("has no native code, though there is a C compiler: pip wheel --verbose says why")
    if wheel.stat().st_size > LARGEST_MB * 1e6:
        found.append(f"is larger than {LARGEST_MB} MB")
    return found


def run(python: str, wheel: Path) -> str:
    """Digest of what a run prints in an environment of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        _call(python, "-m", "venv", f"{scratch}/venv")
        own = f"{scratch}/venv/bin/python"
        constraints = ("--constraint", str(ROOT / "constraints.txt"))
        _call(own, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *constraints, wheel)
        environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        printed = _call(f"{scratch}/venv/bin/blis", *RUN, env=environment, cwd=scratch)
    return sha256(printed.encode()).hexdigest()[:16]


def _of_tag(version: str) -> list[str]:
    found = []
    tags = _call("git", "tag", "--points-at", "HEAD", cwd=ROOT).split()
    if f"v{version}" not in tags:
        found.append(f"this commit has no tag v{version}: git tag -a v{version}")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section {version}")
    return found


def _version() -> str:
    text = (ROOT / "blis_py" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "([^"]+)"', text)
    assert found is not None
    return found[1]


def _path(python: str) -> str | None:
    """An interpreter of that name: on the search path, or one of pyenv that may not be switched on."""
    home = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    for path in (shutil.which(python), *sorted(home.glob(f"versions/*/bin/{python}"), reverse=True)):
        if path is not None and _runs(str(path)):
            return str(path)
    return None


def _runs(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def _call(*words: object, env: dict[str, str] | None = None, cwd: object = None) -> str:
    command, folder = list(map(str, words)), str(cwd) if cwd else None
    done = subprocess.run(command, env=env, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", nargs="+", default=list(PYTHONS), help="(default: 3.11 to 3.13)")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    parser.add_argument("--check-tag", action="store_true", help="refuse a commit without its tag")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
