"""A folder that shows what a plan rests on: its inputs, its configuration, the run, and how to repeat it."""

from __future__ import annotations

import json
import platform
import shlex
import shutil
from collections.abc import Mapping, Sequence
from hashlib import file_digest
from importlib.metadata import version
from pathlib import Path

from blis_py.config.loader import dump
from blis_py.config.models import RunConfig
from blis_py.config.paths import named_files, with_full_paths
from blis_py.planning.result import PlanResult
from blis_py.result import Result
from blis_py.version import __version__

_PACKAGES = ("numpy", "simpy", "pyyaml", "pydantic")
_SCRIPT = """\
#!/bin/sh
# Runs the planned configuration again and compares all files with those of `run`, byte for byte;
# `sh rerun.sh plan` searches again and compares the answer. BLIS is the command, if it is not blis.
set -eu
cd "$(dirname "$0")"
sha256sum --quiet -c SHA256SUMS
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT
${{BLIS:-blis}} run --config config.yaml --no-plots --out "$again/run" > "$again/printed.txt"
for file in run/*; do cmp "$file" "$again/$file"; done
echo "run: the same bytes"
if [ "${{1:-}}" = plan ]; then
  ${{BLIS:-blis}} {command} --no-plots --out "$again/plan" > "$again/printed.txt"
  sed "s#$(pwd -P)/##" "$again/plan/config.yaml" | cmp - config.yaml
  echo "plan: the same bytes"
fi
"""


def write_proof(folder: Path, plan: PlanResult, result: Result, command: Sequence[str]) -> None:
    """Fill an empty folder.

    Args:
        result: the run of the plan's configuration.
        command: words of the command after its name, without those that say where to write.
    """
    config = with_full_paths(plan.config)
    inputs = _copied(config, folder)
    text = dump(config)
    for path, name in inputs.items():
        text = text.replace(path, name)
    _write(folder / "config.yaml", text)
    (folder / "run").mkdir()
    result.fill(folder / "run", plots=False)
    for name in ("config.yaml", "complete.json"):
        (folder / "run" / name).unlink(missing_ok=True)  # has the paths of inputs
    words = shlex.join([_moved(word, inputs) for word in command])
    _write(folder / "command.txt", f"blis {words}\n")
    _write(folder / "rerun.sh", _SCRIPT.format(command=words))
    _write(folder / "versions.json", json.dumps(_versions(result), indent=1) + "\n")
    _write(folder / "SHA256SUMS", "".join(_sums(folder)))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _copied(config: RunConfig, folder: Path) -> Mapping[str, str]:
    """Names of copies of the configuration's files, by path."""
    found: dict[str, str] = {}
    for path in dict.fromkeys(named_files(config).values()):
        if not path.is_file():
            continue
        name = f"inputs/{len(found)}-{path.name}"
        (folder / "inputs").mkdir(exist_ok=True)
        shutil.copyfile(path, folder / name)
        found[str(path)] = name
    return found


def _moved(word: str, inputs: Mapping[str, str]) -> str:
    """A word of the command, a copy in the place of a file."""
    head, equals, value = word.rpartition("=")
    return f"{head}{equals}{inputs.get(str(Path(value).absolute()), value)}" if value else word


def _versions(result: Result) -> dict[str, object]:
    packages = {name: version(name) for name in _PACKAGES}
    return {
        "blis_py": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "seed": result.config.seed,
    }


def _sums(folder: Path) -> list[str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [f"{_digest(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
