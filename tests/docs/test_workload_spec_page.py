"""The page and the JSON schema of the workload spec are what the models that read it say."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made() -> ModuleType:
    found = importlib.util.spec_from_file_location("make_workload_spec", ROOT / "docs/make_workload_spec.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_page_and_schema_are_up_to_date(made: ModuleType) -> None:
    """In a process of its own: making them rebuilds the models that all tests of this process share."""
    fix = "run: python docs/make_workload_spec.py"
    program = "import json, make_workload_spec as made; print(json.dumps([made.page(), made.schema_text()]))"
    path = os.pathsep.join((str(ROOT / "docs"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        capture_output=True,
        text=True,
    )
    page, schema = json.loads(done.stdout)
    assert made.PAGE.read_text(encoding="utf-8") == page, fix
    assert made.SCHEMA.read_text(encoding="utf-8") == schema, fix


def test_every_key_says_what_it_means(made: ModuleType) -> None:
    schema: dict[str, Any] = json.loads(made.schema_text())
    for model in (schema, *schema["$defs"].values()):
        for key, what in model["properties"].items():
            assert what.get("description"), key


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").glob("*.yaml")), ids=lambda path: path.stem)
def test_bundled_workloads_keep_to_the_schema(made: ModuleType, path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(made.schema_text()))
    spec = yaml.safe_load(path.read_text())
    validator.validate(spec)
    assert list(validator.iter_errors(spec | {"agregate_rate": 1}))


@pytest.mark.parametrize("path", sorted((ROOT / "workloads").glob("*.yaml")), ids=lambda path: path.stem)
def test_editors_find_the_schema_of_bundled_workloads(made: ModuleType, path: Path) -> None:
    """By the line that language servers of YAML look for; it is told from where the file is."""
    mark, _, address = path.read_text(encoding="utf-8").splitlines()[0].partition("$schema=")
    assert mark == "# yaml-language-server: "
    assert (path.parent / address).samefile(made.SCHEMA)
