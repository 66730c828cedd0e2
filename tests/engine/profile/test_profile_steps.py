"""Visits to shapes: what is measured is what was planned, on steps of the engine itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from profile_cases import AR

from blis_py.core.token_keys import token_keys
from engine.build import build_engine
from engine.config import EngineConfig
from engine.executor import Forward
from engine.models import build_model, load_model_config
from engine.profile.experts import ForcedExperts, has_experts
from engine.profile.measure import StepBench
from engine.profile.plan import plan, sentinel
from engine.profile.prompts import ProfilePrompts
from engine.profile.shapes import GRIDS, Shape

LOW = {"device": "cpu", "clock": "cpu", "max_num_seqs": 8, "num_kv_blocks": 300}


@pytest.fixture
def bench() -> StepBench:
    engine = build_engine(EngineConfig(model=AR, **LOW))
    return StepBench(engine, ProfilePrompts(engine.vocab_size, engine.tokenizer, 0))


def test_a_decode_shape_gives_consecutive_steps_at_exactly_these_contexts(bench: StepBench) -> None:
    samples = bench.visit(Shape("decode", (40, 5, 300), steps=3))
    assert samples["decode_seqs"].tolist() == [3, 3, 3]
    assert samples["decode_kv_tokens"].tolist() == [345, 348, 351]
    assert samples["max_context"].tolist() == [300, 301, 302]
    assert samples["emitted_rows"].tolist() == [3, 3, 3]
    assert not samples["prefill_tokens"].any()
    assert set(samples["source"].tolist()) == {"decode"}


def test_a_prefill_shape_has_its_tokens_and_its_past(bench: StepBench) -> None:
    samples = bench.visit(Shape("prefill", prefills=((20, 64), (7, 0), (30, 160))))
    (row,) = range(len(samples))
    assert samples["prefill_seqs"][row] == 3
    assert samples["prefill_tokens"][row] == 57
    assert samples["prefill_kv_tokens"][row] == 224
    pairs = sum(t * p + t * (t + 1) // 2 for t, p in ((20, 64), (7, 0), (30, 160)))
    assert samples["prefill_pairs"][row] == pairs
    assert samples["decode_seqs"][row] == 0


def test_a_mixed_shape_has_both(bench: StepBench) -> None:
    samples = bench.visit(Shape("mixed", (100, 50), ((33, 32),)))
    assert samples["decode_kv_tokens"].tolist() == [150]
    assert samples["prefill_tokens"].tolist() == [33]
    assert samples["prefill_kv_tokens"].tolist() == [32]
    assert samples["emitted_rows"].tolist() == [3]


def test_the_total_reaches_to_the_next_step(bench: StepBench) -> None:
    samples = bench.visit(Shape("decode", (40,) * 4, steps=3))
    segments = sum(samples[name] for name in
                   ("schedule_ns", "prepare_ns", "launch_ns", "sample_ns", "finish_ns"))  # fmt: skip
    assert (samples["total_ns"] > segments).all()
    assert (samples["gpu_ns"] == samples["launch_ns"] + samples["sample_ns"]).all()
    assert (samples["host_ns"] + samples["gpu_ns"] == samples["total_ns"]).all()


def test_every_planned_shape_is_reached(bench: StepBench) -> None:
    for shape in plan(bench.limits, GRIDS["quick"]):
        samples = bench.visit(shape)
        assert len(samples) == shape.steps
        assert samples["decode_kv_tokens"][0] == sum(shape.decodes)
    assert not bench.engine.has_unfinished
    bench.engine.scheduler.check()


def test_repetitions_use_other_pages_and_other_tokens(bench: StepBench) -> None:
    engine = bench.engine
    seen: list[set[int]] = []
    prepare = engine.prepare

    def noting(step: Any) -> Any:
        batch = prepare(step)
        table = engine.executor.builder.tables.host[batch.layout.host.rows[0]]
        seen[-1].update(table[:3].tolist())
        return batch

    engine.prepare = noting  # type: ignore[method-assign]
    for _ in range(3):
        seen.append(set())
        bench.visit(Shape("decode", (45,)))
    assert not seen[0] & seen[1] & seen[2]


def test_measured_steps_run_the_forward_and_those_that_lead_there_do_not(
    bench: StepBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    hidden = Forward.hidden

    def counting(self: Forward, inputs: Any, *others: Any) -> Any:
        calls.append(len(inputs.input_ids))
        return hidden(self, inputs, *others)

    monkeypatch.setattr(Forward, "hidden", counting)
    bench.visit(Shape("decode", (200,) * 4, steps=2))
    assert calls == [4, 4, 4]  # one leads, two are measured


def count_calls(run: Callable[[], object]) -> int:
    """Python and C functions called meanwhile."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return count


def test_what_a_visit_costs_the_host_does_not_depend_on_the_contexts(bench: StepBench) -> None:
    """Sequences are placed at their contexts: what leads there is not scheduled, hashed or tokenized."""
    lengths = (20, 100, 400)
    shapes = [Shape("decode", (length, length + 5, length + 9), steps=2) for length in lengths]
    for shape in shapes:
        bench.visit(shape)
    short, middle, long = (count_calls(lambda shape=shape: bench.visit(shape)) for shape in shapes)
    assert max(short, middle, long) < 1.05 * min(short, middle, long)


def test_two_steps_of_a_visit_are_not_measured_whatever_the_contexts(
    bench: StepBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining and leading."""
    for module in ("engine", "lifecycle"):
        monkeypatch.setattr(f"engine.{module}.token_keys", None)
    for contexts in ((30,) * 2, (400, 350, 300, 250, 200, 150, 100, 50)):
        bench.visit(Shape("decode", contexts, steps=2))
        assert bench.engine.recorder.steps == 2 + 2


def test_a_measured_prompt_is_added_hashed_and_found_in_the_cache_as_in_service(
    bench: StepBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[int] = []

    def noting(ids: Any, *rest: Any) -> Any:
        hashed.append(len(ids))
        return token_keys(ids, *rest)

    monkeypatch.setattr("engine.lifecycle.token_keys", noting)
    bench.visit(Shape("prefill", prefills=((20, 160), (7, 0))))
    log = bench.engine.recorder.log()
    assert hashed[-2:] == [180, 7]
    assert sorted(log.requests["cached_tokens"])[-1] == 160
    assert log.steps["admitted_ids"][1] == (1, 2), "they are admitted in the measured step"


def test_the_cache_holds_random_numbers_not_zeros(bench: StepBench) -> None:
    k_cache, v_cache = bench.engine.executor.forward.kv[0]
    assert k_cache.std() > 0.5 < v_cache.std()


def test_the_sentinel_is_one_of_the_decode_shapes(bench: StepBench) -> None:
    shapes = plan(bench.limits, GRIDS["quick"])
    chosen = sentinel(shapes)
    assert chosen.source == "sentinel"
    assert set(bench.visit(chosen)["source"].tolist()) == {"sentinel"}


def test_a_composition_other_than_planned_is_an_error_not_a_sample(bench: StepBench) -> None:
    with pytest.raises(RuntimeError, match="planned"):
        bench.visit(Shape("prefill", prefills=((400, 0),) * 8))  # more than a step may have


def test_forced_experts_are_those_that_the_layers_compute(experts: str) -> None:
    config = EngineConfig(model=experts, load_format="dummy", count_active_experts=True, **LOW)
    model = build_model(load_model_config(experts), device="cpu", load_format="dummy", path=experts)
    assert has_experts(model)
    forced = ForcedExperts(model, 2048)
    engine = build_engine(config, model=model)
    bench = StepBench(engine, ProfilePrompts(300, None, 0), forced)
    assert (bench.limits.experts, bench.limits.top_k) == (8, 2)
    for count, active in ((1, 2), (8, 2), (8, 5), (8, 8)):
        samples = bench.visit(Shape("experts", (20,) * count, experts=active))
        assert samples["active_experts"].tolist() == [2 * active]
        counted = engine.recorder.log().steps["active_experts"]
        assert 2 * active in counted
    free = bench.visit(Shape("decode", (20,) * 8))
    assert 8 < free["active_experts"][0] <= 16


def test_every_token_gets_different_experts(experts: str) -> None:
    model = build_model(load_model_config(experts), device="cpu", load_format="dummy", path=experts)
    forced = ForcedExperts(model, 64)
    for active in (0, 2, 3, 8):
        forced.force(active)
        ids = forced._on_device.numpy()
        assert all(len(set(row)) == 2 for row in ids.tolist())
        assert active == 0 or len(np.unique(ids)) == active


def test_a_dense_model_has_no_experts_to_force() -> None:
    assert not has_experts(build_model(load_model_config(AR), device="cpu", load_format="dummy"))


@pytest.mark.parametrize("readable", [True, False])
def test_prompts_differ_from_their_first_block_on(readable: bool) -> None:
    from engine.models import load_tokenizer

    prompts = ProfilePrompts(264, load_tokenizer(Path(AR)) if readable else None, 0)
    taken = [prompts.take(40) for _ in range(200)]
    assert {len(prompt) for prompt in taken} == {40}
    assert len({tuple(prompt[:16]) for prompt in taken}) == 200
    assert len(set(taken[0])) > 8
