from __future__ import annotations

import gc
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

NATIVELY = (
    "accuracy",
    "calibrate",
    "comparison",
    "docs",
    "extension",
    "golden",
    "ledger",
    "notebooks",
    "outputs",
    "pages",
    "planning",
    "properties",
    "report",
    "serve",
    "theory",
    "ui",
    "workload",
)
"""Folders of tests that run in native code with `--part=native`; others may replace
parts of the inner loop, which compiled code does not permit."""
WITH_TORCH = ("calibrate/test_fit_engine.py", "docs/test_calibrate_guide.py", "serve/test_engine_backend.py")
"""Files of these folders that run the engine: they are with its other tests, since importing torch takes each
test process as long as hundreds of tests."""

# Every run tries the same examples; `--hypothesis-profile=search` looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", settings.get_profile("search"), derandomize=True, print_blob=True)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=("all", "native", "interpreted"),
        default="all",
        help="native: the folders of NATIVELY, in native code where there is any that is up to date; "
        "interpreted: all others; all: everything, interpreted",
    )


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job: children would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--part") != "native":
        os.environ["BLIS_INTERPRETED"] = "1"
        return
    from blis_py import native

    if not native.activate() and native.current():
        raise pytest.UsageError("a conftest.py has imported the inner loop before native code was activated")


def pytest_collection(session: pytest.Session) -> None:
    """Collecting makes only what stays: without garbage collection it takes two fifths less."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Garbage collection leaves out what collecting made, which lives as long as the session."""
    gc.freeze()
    gc.enable()


def pytest_report_header(config: pytest.Config) -> str:
    from blis_py.core import kv

    how = "interpreted" if kv.__file__.endswith(".py") else "natively compiled"
    return f"inner loop of the simulator: {how}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A part is some folders, and some files of others."""
    return not _in_part(collection_path, config) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Folders named on the command line are collected in any case; those of the other part are deselected."""
    others = [item for item in items if not _in_part(item.path, config)]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _in_part(item.path, config)]


def _in_part(path: Path, config: pytest.Config) -> bool:
    part = config.getoption("--part")
    place = path.relative_to(Path(__file__).parent)
    if part == "all" or not place.parts or any(place in Path(file).parents for file in WITH_TORCH):
        return True
    return (place.parts[0] in NATIVELY and place.as_posix() not in WITH_TORCH) == (part == "native")


@pytest.fixture(scope="session", autouse=True)
def _scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Temporary files and what is kept of runs go with the test session."""
    place = tmp_path_factory.mktemp("scratch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BLIS_CACHE", str(place / "cache"))
        patch.setenv("TMPDIR", str(place))
        patch.setattr(tempfile, "tempdir", str(place))
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces and measurements that live beside the checkout; tests that need them skip without."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the shared data folder is not beside this checkout")
    return folder


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line in this process: `code, out, err = command("run", "--tp", 2)`."""
    from blis_py.cli import main

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def json_of(command: Callable[..., tuple[int, str, str]]) -> Callable[..., Any]:
    """What a command that succeeds prints as JSON."""

    def call(*arguments: object) -> Any:
        code, out, err = command(*arguments)
        assert code == 0, err
        return json.loads(out)

    return call
