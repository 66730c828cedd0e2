"""Decisions of vLLM's own scheduler, as recorded, are ours under the preset of the release.

`python -m benchmarks.engines.record` made the files, from vLLM's wheels.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.engines import ours
from benchmarks.engines.compare import first_difference
from benchmarks.engines.decisions import Decision, read
from benchmarks.engines.switches import shown, switched
from benchmarks.engines.vllm import VLLM

FOLDER = Path(__file__).with_name("engine_decisions")
RELEASES = [f"vllm-{release}" for release in VLLM.recorded]
NEEDS_AN_OUTCOME = {
    "blocks_await_outcome",
    "preemption_skips_next",
    "windows_await_outcome",
    "states_leave_gaps",
}
"""Without steps in flight every outcome is known, and every running request computes something."""
NEEDS_AN_INTERVAL = {"prefill_interval_needs_ranks", "prefill_interval_holds_last_tokens"}
"""Decides what `prefill_schedule_interval` does, which these releases do not have."""
ALREADY = {"drafts_found_at_outcome"}
"""With steps in flight accepted drafts are always found at their outcome."""
NEEDS_PADDING = {"padding_must_fit", "padding_needs_company"}
"""Decides what `pads_lone_tokens` does, which these releases do not do."""
NEEDS_GROWTH = {"planned_content_stays"}
"""Synchronously a preempted request has no more tokens when it comes back, and the last block is always
computed again; only a chunk of its prompt would show it."""
RARE = {"preemption_skips_next"}
SELDOM = {"padding_must_fit"}
"""Among thousands of scenarios none was found that shows it in this release."""
NEEDS_WHOLE_PROMPTS = {"windows_cap_prompts"}
"""Decides what `scheduler_reserve_full_isl` does, which 0.15 does not have; with steps in flight seldom
shown."""
NEEDS_LOADS = {"loads_spare_prompts"}
"""Decides which requests take blocks for KV from elsewhere; no scenario has any."""
NEEDS_STATES = {
    "state_chunks_align_prompts",
    "states_precede_last_token",
    "states_leave_gaps",
    "states_marked_again",
}
"""Decides how the prefix cache keeps states, which these releases do in another way."""
SYNCHRONOUS = NEEDS_AN_OUTCOME | NEEDS_GROWTH
NOT_SHOWN = {
    ("vllm-0.15", False): NEEDS_STATES
    | SYNCHRONOUS
    | NEEDS_AN_INTERVAL
    | NEEDS_PADDING
    | NEEDS_WHOLE_PROMPTS,
    ("vllm-0.15", True): NEEDS_STATES | NEEDS_AN_INTERVAL | ALREADY | NEEDS_PADDING | NEEDS_WHOLE_PROMPTS,
    ("vllm-0.24", False): NEEDS_STATES | SYNCHRONOUS | NEEDS_PADDING,
    ("vllm-0.24", True): NEEDS_STATES | ALREADY | NEEDS_PADDING | NEEDS_WHOLE_PROMPTS,
    ("vllm-0.29", False): SYNCHRONOUS | SELDOM,
    ("vllm-0.29", True): ALREADY | SELDOM | NEEDS_WHOLE_PROMPTS,
    ("vllm-0.33", False): SYNCHRONOUS | SELDOM,
    ("vllm-0.33", True): ALREADY | SELDOM,
}
"""Rules that change nothing, by release and whether the loop is asynchronous."""


@cache
def recorded(release: str) -> list[Decision]:
    return read(FOLDER / f"{release}.jsonl")


def test_every_release_has_decisions_of_both_loops_in_little_space() -> None:
    files = sorted(FOLDER.iterdir())
    assert sorted(path.stem for path in files) == sorted(RELEASES)
    assert sum(path.stat().st_size for path in files) < 420_000
    for release in RELEASES:
        assert {decision.scenario["async_scheduling"] for decision in recorded(release)} == {False, True}


@pytest.mark.parametrize("release", RELEASES)
def test_every_step_is_the_engines(release: str) -> None:
    version = release.partition("-")[2]
    for scenario, trace in recorded(release):
        own = ours.trace(scenario, VLLM.config(scenario, version))
        assert first_difference(trace, own) is None, scenario


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("release", RELEASES)
def test_without_a_rule_of_its_release_some_step_is_another(release: str, asynchronous: bool) -> None:
    version = release.partition("-")[2]
    rules: set[str] = set()
    seen: set[str] = set()
    for scenario, trace in recorded(release):
        if scenario["async_scheduling"] is asynchronous:
            config = VLLM.config(scenario, version)
            rules |= switched(config).keys()
            seen |= shown(scenario, trace, config)
    assert len(rules) > 5
    assert rules - seen == NOT_SHOWN.get((release, asynchronous), set()) | NEEDS_LOADS


def test_preemption_caching_late_stops_and_repeated_admissions_are_among_the_steps() -> None:
    for release in RELEASES:
        for asynchronous in (False, True):
            traces = [d.trace for d in recorded(release) if d.scenario["async_scheduling"] is asynchronous]
            steps = [step for trace in traces for step in trace]
            for key in ("preempted", "cached", "again", "finished"):
                assert any(step.get(key) for step in steps), (release, asynchronous, key)
            assert any(cached > 0 for step in steps for cached in step.get("cached", {}).values())
            assert any(cached > 0 for step in steps for cached in step.get("again", {}).values())
