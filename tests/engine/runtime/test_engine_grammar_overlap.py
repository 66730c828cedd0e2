"""Constrained decoding in the overlapped loop: a mask waits for the token before, and for no more."""

from __future__ import annotations

from typing import Any

import pytest
from grammar_forms import CROWDED, PROMPT, constrained, of_its_form, random_forms, served, tiny_engine
from stub_engine import assert_no_leak

from blis_py.calibrate.parity import replay_steps
from engine.sampling_params import SamplingParams

pytest.importorskip("xgrammar")

OVERLAPPED = {"async_scheduling": True, "check_relay": True}


def mixed(seed: int, count: int) -> list[SamplingParams]:
    """Hot and constrained, and greedy and free, among each other."""
    free = SamplingParams(temperature=0, max_tokens=40)
    forms = random_forms(seed=seed, count=count)
    params = [constrained(structured_outputs=form, seed=i) for i, form in enumerate(forms)]
    return [own for i, one in enumerate(params) for own in ([one, free] if i % 3 == 0 else [one])]


@pytest.mark.parametrize("seed", [3, 11])
@pytest.mark.parametrize("settings", [{}, {**CROWDED, "prefix_cache": "radix"}, CROWDED], ids=str)
def test_both_loops_write_the_same(settings: dict[str, Any], seed: int) -> None:
    params = mixed(seed, 24)
    in_turn = served(tiny_engine(**settings), *params)
    engine = tiny_engine(**settings, **OVERLAPPED)
    ahead = served(engine, *params)
    assert [s.output_ids for s in ahead] == [s.output_ids for s in in_turn]
    assert [(s.finish_reason, s.error) for s in ahead] == [(s.finish_reason, s.error) for s in in_turn]
    whole = [s for s in ahead if s.finish_reason == "stop" and s.params.structured_outputs]
    assert len(whole) >= 15
    assert all(of_its_form(s.text(), s.params) for s in whole)
    assert_no_leak(engine.scheduler, engine.executor)
    assert replay_steps(engine.recorder.log()).share == 1, "the simulator forms other batches"


def test_masks_are_computed_beside_forwards_and_noted() -> None:
    engine = tiny_engine(**OVERLAPPED)
    served(engine, *(constrained(guided_regex="[ab]{20}", seed=i) for i in range(4)))
    steps = engine.recorder.log().steps
    assert max(steps["constrained_rows"]) == 4
    assert sum(steps["mask_ns"]) > 0


@pytest.mark.parametrize("form", [{"guided_regex": "a{4}", "min_tokens": 6}], ids=str)
def test_an_output_that_can_go_no_further_fails_alone(form: dict[str, Any]) -> None:
    others = [constrained(guided_regex="[bc]{20}", seed=1), SamplingParams(temperature=0, max_tokens=30)]
    expected = [s.output_ids for s in served(tiny_engine(), *others)]
    engine = tiny_engine(**OVERLAPPED)
    stuck = engine.add_request(PROMPT, constrained(**form))
    sequences = [engine.add_request(PROMPT, own) for own in others]
    emitted: list[int] = []
    while engine.has_unfinished:
        output = engine.step()
        emitted += [t for s, t in zip(output.sequences, output.tokens, strict=True) if s is stuck]
    assert_no_leak(engine.scheduler, engine.executor)
    assert (stuck.finish_reason, len(stuck.output_ids)) == ("error", 4)
    assert emitted == stuck.output_ids
    assert [s.output_ids for s in sequences] == expected


def test_a_mask_that_fails_ends_its_step_and_not_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine(**OVERLAPPED)
    one = engine.add_request(PROMPT, constrained(guided_regex="[ab]{20}"))
    for _ in range(5):
        engine.step()
    with monkeypatch.context() as patched:
        patched.setattr("engine.grammar.masks.BatchMask.fill", lambda self: 1 // 0)
        while engine.has_unfinished:
            engine.step()
    assert one.finish_reason == "error"
    assert "ZeroDivisionError" in str(one.error)
    assert_no_leak(engine.scheduler, engine.executor)
    (again,) = served(engine, constrained(guided_regex="[ab]{20}"))
    assert (again.finish_reason, len(again.output_ids)) == ("stop", 21)
