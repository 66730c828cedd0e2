"""Commands without the packages of extras: what runs, and which extra the others name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("pandas", "matplotlib", "scipy", "pyarrow", "jinja2", "fastapi", "uvicorn", "optuna", "distributed")
SAMPLES = Path(__file__).parents[2] / "profiles/fits/cpu/tiny-ar/samples.csv.gz"
RUN = ["--workload", "chat", "--model", "llama-3.1-8b", "--num-requests", "8"]
COMMANDS = {
    "run": ["run", *RUN, "--trace-level", "decisions", "--out", "run"],
    "replay": ["replay", "--trace", "run/trace.csv", "--model", "llama-3.1-8b", "--out", "again"],
    "sweep": ["sweep", *RUN, "--vary", "tp=1,2", "--seeds", "2", "--out", "sweep", "--format", "table"],
    "explain": ["explain", "run", "--out", "explained"],
    "plan": [
        *("plan", "--model", "llama-3.1-8b", "--gpu", "h100", "--rate", "1", "--slo", "ttft.p99=9s"),
        *("--no-tuning", "--draws", "0", "--most-requests", "200", "--instances", "1:2", "--out", "plan"),
    ],
    **{f"{verb} -h": [verb, "-h"] for verb in ("plot", "calibrate", "observe", "convert", "report", "serve")},
    "profile fit -h": ["profile", "fit", "-h"],
    "plot": ["plot", "run"],
    "compare": ["compare", "run", "again"],
    "report": ["report", "run", "-o", "report.html"],
    "ui": ["ui"],
    "serve": ["serve"],
    "profile": ["profile", "fit", str(SAMPLES), "--out", "fitted"],
}
NEEDS = {
    "plot": ("plots", "matplotlib"),
    "compare": ("frames", "pandas"),
    "report": ("report", "jinja2"),
    "ui": ("ui", "fastapi"),
    "serve": ("serve", "fastapi"),
    "profile": ("fit", "scipy"),
}
CALLED = """
import contextlib, io, json, sys
for package in {heavy}:
    sys.modules[package] = None
from blis_py.cli import main
done = {{}}
for name, words in {commands}.items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    done[name] = code, out.getvalue(), err.getvalue()
print(json.dumps(done))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, tuple[int, str, str]], Path]:
    """Exit code, output and messages of each command where no package of an extra can be imported."""
    place = tmp_path_factory.mktemp("light")
    code = CALLED.format(heavy=HEAVY, commands=COMMANDS)
    called = subprocess.run(
        [sys.executable, "-c", code], cwd=place, check=True, capture_output=True, text=True
    )
    return json.loads(called.stdout), place


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in NEEDS])
def test_the_simulator_runs_without_the_packages_of_extras(
    name: str, done: tuple[dict[str, tuple[int, str, str]], Path]
) -> None:
    code, out, err = done[0][name]
    assert (code, bool(out)) == (0, True), err


@pytest.mark.parametrize("name", NEEDS)
def test_a_command_names_the_extra_that_it_needs_in_one_line(
    name: str, done: tuple[dict[str, tuple[int, str, str]], Path]
) -> None:
    code, out, err = done[0][name]
    extra, package = NEEDS[name]
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert package in line
    assert line.endswith(f"pip install 'blis-py[{extra}]'")


@pytest.mark.parametrize("name", ["run", "replay", "sweep", "explain", "plan"])
def test_a_folder_without_pictures_says_why_and_has_all_else(
    name: str, done: tuple[dict[str, tuple[int, str, str]], Path]
) -> None:
    folder = COMMANDS[name][-1] if name != "sweep" else "sweep"
    assert (
        done[0][name][2].count(f"note: no pictures in {folder}: they need pip install 'blis-py[plots]'") == 1
    )
    files = json.loads((done[1] / folder / "complete.json").read_text())["files"]
    assert files
    assert not [file for file in files if str(file).endswith(".png")]
