"""The page and the JSON schema of the workload spec are what the models that read it say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


class Made(NamedTuple):
    """What the generator makes now, and the files where it belongs."""

    page: str
    schema_text: str
    page_file: Path
    schema_file: Path

    @property
    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = json.loads(self.schema_text)
        return schema


@pytest.fixture(scope="module")
def made() -> Made:
    """Made in a process of its own: it rebuilds the models, which all tests of this process share."""
    program = (
        "import json, make_workload_spec as made;"
        "print(json.dumps([made.page(), made.schema_text(), str(made.PAGE), str(made.SCHEMA)]))"
    )
    path = os.pathsep.join((str(ROOT / "docs"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    page, schema, page_file, schema_file = json.loads(done.stdout)
    return Made(page, schema, Path(page_file), Path(schema_file))


def test_page_and_schema_are_up_to_date(made: Made) -> None:
    fix = "run: python docs/make_workload_spec.py"
    assert made.page_file.read_text(encoding="utf-8") == made.page, fix
    assert made.schema_file.read_text(encoding="utf-8") == made.schema_text, fix


def test_every_key_states_what_it_means(made: Made) -> None:
    for model in (made.schema, *made.schema["$defs"].values()):
        for key, what in model["properties"].items():
            assert what.get("description"), key


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").glob("*.yaml")), ids=lambda path: path.stem)
def test_bundled_workloads_keep_to_the_schema(made: Made, path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(made.schema)
    spec = yaml.safe_load(path.read_text())
    validator.validate(spec)
    assert list(validator.iter_errors(spec | {"agregate_rate": 1}))


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").glob("*.yaml")), ids=lambda path: path.stem)
def test_editors_find_the_schema_of_bundled_workloads(made: Made, path: Path) -> None:
    """By the line that language servers of YAML look for; it is relative to the file."""
    mark, _, address = path.read_text(encoding="utf-8").splitlines()[0].partition("$schema=")
    assert mark == "# yaml-language-server: "
    assert (path.parent / address).samefile(made.schema_file)
