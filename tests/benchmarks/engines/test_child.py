"""Child processes and stand-ins, with an engine written for the test."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.engines import config_defaults
from benchmarks.engines.child import Child, ChildError
from benchmarks.engines.scenario import Scenario

ROOT = Path(__file__).resolve().parents[3]
HEAD = (
    f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom benchmarks.engines import child_loop, stand_ins\n"
)
Program = Callable[[str], Path]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    def write(body: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(HEAD + textwrap.dedent(body), encoding="utf-8")
        return path

    return write


def test_scenarios_go_in_and_traces_come_out_whatever_the_engine_prints(
    program: Program, tmp_path: Path
) -> None:
    body = """
        def drive(scenario):
            print("an engine's banner")
            if scenario["max_steps"] == 0:
                raise KeyError("x")
            return [{"blocks": scenario["max_steps"]}]
        child_loop.serve(drive, {"release": 1})
    """
    with Child(program(body), tmp_path) as child:
        assert child.about == {"release": 1}
        for number in (3, 4):
            child.send(Scenario(max_steps=number))
            assert child.receive() == [{"blocks": number}]
        child.send(Scenario(max_steps=0))
        failure = child.receive()
        assert isinstance(failure, dict)
        assert failure["error"] == "KeyError: 'x'"
        child.send(Scenario(max_steps=5))
        assert child.receive() == [{"blocks": 5}]


def test_a_process_that_ends_says_why(program: Program, tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="ZeroDivisionError"):
        Child(program("1 / 0"), tmp_path)


def test_memory_is_limited(program: Program, tmp_path: Path) -> None:
    body = """
        child_loop.limit_memory(int(sys.argv[2]))
        child_loop.serve(lambda scenario: [{"blocks": len(bytearray(1 << 30))}], {})
    """
    with Child(program(body), tmp_path, max_bytes=1 << 29) as child:
        child.send(Scenario())
        failure = child.receive()
        assert isinstance(failure, dict)
        assert failure["error"].startswith("MemoryError")


def test_modules_that_are_not_named_are_stood_in_and_others_run_as_they_are(
    program: Program, tmp_path: Path
) -> None:
    package = tmp_path / "engine_x"
    (package / "core").mkdir(parents=True)
    (package / "core" / "sched.py").write_text(
        "import torch\nfrom engine_x.utils import cdiv, logger\nfrom engine_x.heavy import Base, decorate\n"
        "class Sched(Base):\n    @decorate\n    def plan(self, n): return cdiv(n, 4)\n"
        "KIND = torch.Tensor | None\nlogger.info('x')\n"
    )
    body = """
        parts = {"engine_x.utils": {"cdiv": lambda a, b: -(-a // b)}}
        stand_ins.install(sys.argv[1], "engine_x", ("engine_x.core",), {"torch"}, parts)
        from engine_x.core.sched import Sched
        child_loop.serve(lambda scenario: [{"blocks": Sched().plan(9)}], {})
    """
    with Child(program(body), tmp_path) as child:
        child.send(Scenario())
        assert child.receive() == [{"blocks": 3}]


def test_defaults_are_read_from_source_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text(
        "import absent\n@absent.config\nclass SchedulerConfig:\n    a: int = 3\n"
        "    b: bool = Field(default=True, ge=0)\n    c: int\n"
        "    d: list = field(default_factory=list)\n    e: float = absent.E\n"
    )
    computed = config_defaults.NO_LITERAL
    expected = {"a": 3, "b": True, "c": computed, "d": computed, "e": computed}
    assert config_defaults.of_path(tmp_path) == {"SchedulerConfig": expected}
