"""The arrows between the parts of the code are enforced: what `make lint` would say of a forbidden import."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINT = Path(sys.executable).with_name("lint-imports")
FORBIDDEN = {
    "the core imports the simulated clock": ("core/scheduler.py", "import simpy", "The core is plain Python"),
    "the core imports arrays, in a function": (
        "core/checks.py",
        "def late() -> None:\n    import numpy as np\n\n    np.array(0)",
        "The core is plain Python",
    ),
    "the simulator imports the engine": (
        "cluster/routing/router.py",
        "def late() -> None:\n    from engine.config import EngineConfig\n\n    EngineConfig",
        "without the engine and without torch",
    ),
    "step times import the cluster, for a type": (
        "latency/base.py",
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from blis_py.cluster import routing",
        "A package imports only packages below it",
    ),
    "two modules import each other": (
        "core/kv.py",
        "def late() -> None:\n    from blis_py.core import scheduler\n\n    scheduler",
        "has no circles",
    ),
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    for package in ("blis_py", "engine"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.pyc", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    if not LINT.exists():
        pytest.skip("import-linter is not installed")
    return subprocess.run([LINT, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_forbidden_import_breaks_its_contract(copy: Path) -> None:
    """All at once, in a copy whose original keeps every contract: `make lint` says so."""
    for module, code, _ in FORBIDDEN.values():
        with (copy / "blis_py" / module).open("a") as file:
            file.write(f"\n\n{code}\n")
    done = lint(copy)
    assert done.returncode == 1
    broken = [line for line in done.stdout.splitlines() if " BROKEN" in line]
    for what, (_, _, contract) in FORBIDDEN.items():
        assert any(contract in line for line in broken), f"{what}\n{done.stdout}"


def test_no_two_modules_of_the_engine_import_each_other() -> None:
    """Whatever package they are in; imports inside functions and for types count."""
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("engine", cache_dir=None)
    needs = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := [module for module, others in needs.items() if not others & needs.keys()]:
        for module in free:
            del needs[module]
    assert not needs, "a circle among these, or above it"
