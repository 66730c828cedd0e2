"""What changed from one release to the next, read from sources written for the test; no wheel."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from benchmarks.engines import ours, scenarios, source_changes, track, wheels
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.scenario import Scenario
from blis_py.errors import InputError

BEFORE = '''
class Config:
    a: int = 1
    b: bool = False
    gone: int = 3


class Scheduler:
    def schedule(self, budget: int) -> int:
        """Plan."""
        logger.info("planning")
        return budget

    def same(self): return 1

    def removed(self): return 2
'''
AFTER = '''
class Config:
    a: int = 1
    b: bool = True
    new: float = 0.5


class Scheduler:
    def schedule(self, budget):
        """Plan a step."""
        logger.debug("planning a step")
        return budget - 1

    def same(self) -> int:
        """As before."""
        return 1

    def added(self): return 3
'''


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    for name, text in (("before", BEFORE), ("after", AFTER)):
        (tmp_path / name / "core").mkdir(parents=True)
        (tmp_path / name / "core" / "sched.py").write_text(text, encoding="utf-8")
    return tmp_path / "before", tmp_path / "after"


def test_settings_that_are_new_gone_or_have_another_default(roots: tuple[Path, Path]) -> None:
    found = source_changes.defaults(*roots, ["core"])
    assert found == ({"Config.new": 0.5}, {"Config.gone": 3}, {"Config.b": (False, True)})


def test_functions_that_do_something_else_and_not_those_with_other_texts(roots: tuple[Path, Path]) -> None:
    found = source_changes.functions(*roots, ["core/sched.py"])
    name = "core/sched.py: Scheduler."
    assert found == ({f"{name}added": 1}, {f"{name}removed": 1}, {f"{name}schedule": (4, 4)})


def test_a_release_is_compared_with_the_last_pinned_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "pinned", lambda package: {"0.9.2": "", "0.15.1": "", "0.33.0": ""})
    engine = ENGINES["vllm"]
    assert track.last_before(engine, "0.34.0") == "0.33.0"
    assert track.last_before(engine, "0.33.0") == track.last_before(engine, "0.20.0") == "0.15.1"
    with pytest.raises(InputError, match="--against"):
        track.last_before(engine, "0.9.0")


def with_a_rule(seed: int) -> tuple[Scenario, ours.Trace, ours.Trace]:
    """A scenario; our trace under a preset, and with the whole prompt reserved the other way."""
    scenario = scenarios.scenario(Random(seed), (0, 15), False, scenarios.DEFAULTS)
    config = ENGINES["vllm"].config(scenario, "0.15")
    other = {"ours": {"scheduler_reserve_full_isl": not config.scheduler_reserve_full_isl}}
    changed = ENGINES["vllm"].config({**scenario, **other}, "0.15")  # type: ignore[typeddict-item]
    return scenario, ours.trace(scenario, config), ours.trace(scenario, changed)


def test_a_rule_explains_what_becomes_equal_with_it_alone() -> None:
    found = [with_a_rule(seed) for seed in range(25)]
    differing = [(scenario, after) for scenario, before, after in found if before != after]
    assert differing
    for scenario, after in differing:
        rules = track.explaining(ENGINES["vllm"], "0.15", scenario, after)
        assert "scheduler.scheduler_reserve_full_isl: true" in rules
