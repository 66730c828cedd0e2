"""The engine under the name that a wheel installs."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "release"))

import engine_package  # noqa: E402

BLOCKED = "import sys; sys.modules['engine'] = None; "


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both packages, as in an environment that has the wheel."""
    place = tmp_path_factory.mktemp("installed")
    engine_package.write(ROOT, place)
    (place / "blis_py").symlink_to(ROOT / "blis_py")
    return place


def mentions(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """Imports and strings that name a module of the repository's `engine`."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(name), level=0):
                yield name
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.Constant(value=str(text)) if text in modules:
                yield text


def test_no_module_refers_to_the_name_of_the_repository(installed: Path) -> None:
    sources = [path for path in (ROOT / "engine").rglob("*.py") if "checkpoints" not in path.parts]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in sources}
    written = sorted((installed / "blis_engine").rglob("*.py"))
    assert len(written) == len(sources)
    found = {
        f"{path.relative_to(installed)}: {name}"
        for path in written
        for name in mentions(ast.parse(path.read_text("utf-8")), modules)
        if name.split(".")[0] == "engine"
    }
    assert not found


def test_a_wheel_has_the_sources_of_kernels_and_no_checkpoints(installed: Path) -> None:
    names = {path.name for path in (installed / "blis_engine").rglob("*")}
    assert {"py.typed", "sampling.cu", "common.cuh"} <= names
    assert "checkpoints" not in names


def test_the_installed_engine_generates_without_the_repository(installed: Path) -> None:
    words = ["engine", "generate", "-h"]
    code = f"{BLOCKED}from blis_py.cli import main; main({words}); import blis_engine.llm"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=installed, env=environment, capture_output=True, text=True, check=True)
    assert "blis engine generate" in done.stdout


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("from engine import llm\n", "from blis_engine import llm\n"),
        ("if x:\n    from engine.cli import a\n", "if x:\n    from blis_engine.cli import a\n"),
        ("x; from engine import engine\n", "x; from blis_engine import engine\n"),
        ("x = 'engine.cli', \"engine.a.b\"\n", "x = 'blis_engine.cli', \"blis_engine.a.b\"\n"),
        ("from blis_py.cli import engine\n", None),
        ("engine = f(engine.step)  # engine.cli\n", None),
        ("def f():\n    yield from engine.steps\n", None),
        ("from engines import a\nfrom .engine import b\nx = 'engine', 'engines.a'\n", None),
    ],
)
def test_whole_names_of_modules_change_and_nothing_else(source: str, changed: str | None) -> None:
    assert engine_package.renamed(source, "a.py") == (changed or source)


def test_an_import_whose_uses_would_have_to_change_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a\.py:2: write `from engine import"):
        engine_package.renamed("\nimport engine.llm\n", "a.py")
