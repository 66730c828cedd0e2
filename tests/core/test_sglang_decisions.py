"""Decisions of SGLang's own scheduling loop, as recorded, are ours under the preset of the release.

`python -m benchmarks.engines.sglang_record` made the files, from the engine's wheels.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engines import ours
from benchmarks.engines.compare import first_difference
from benchmarks.engines.decisions import read
from benchmarks.engines.sglang import config
from benchmarks.engines.sglang_record import RELEASES, SWITCHES

FILES = sorted(Path(__file__).with_name("sglang_decisions").glob("*.jsonl"))


def test_every_release_has_decisions_with_retractions() -> None:
    assert sorted(path.stem for path in FILES) == sorted(RELEASES)
    for path in FILES:
        found = read(path)
        assert {decision.scenario["async_scheduling"] for decision in found} == {False, True}
        assert {decision.scenario["block_size"] for decision in found} >= {1, 16}
        assert any(step["preempted"] for decision in found for step in decision.trace)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_step_is_sglangs(path: Path) -> None:
    for scenario, trace in read(path):
        own = ours.trace(scenario, config(scenario, path.stem))
        assert first_difference(trace, own) is None, scenario


def is_decided(path: Path, switch: dict[str, Any]) -> bool:
    """Whether a recorded decision comes out otherwise without the rule."""
    return any(
        first_difference(
            each.trace, ours.trace(each.scenario, replace(config(each.scenario, path.stem), **switch))
        )
        is not None
        for each in read(path)
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rules_of_its_release_decide_some_of_them(path: Path) -> None:
    undecided = [switch for switch in SWITCHES[path.stem] if not is_decided(path, switch)]
    assert undecided in ([], [{"answers_apart": False}]), "no recorded decision depends on it"


def test_leaves_are_evicted_in_some_of_them() -> None:
    assert any(is_decided(path, {"radix_eviction": "blocks"}) for path in FILES)
