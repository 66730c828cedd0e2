"""Steps of a profile behind which requests wait, under a policy that looks them up in the cache."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from profile_cases import AR

from engine.build import build_engine
from engine.config import EngineConfig
from engine.models import build_model, load_model_config
from engine.profile.experts import ForcedExperts
from engine.profile.measure import StepBench
from engine.profile.prompts import ProfilePrompts
from engine.profile.queued import DEPTHS, STEPS, prefix_tokens, queueing, waiting_requests
from engine.profile.shapes import Shape, ShapeLimits

LOW: dict[str, Any] = {"device": "cpu", "clock": "cpu", "max_num_seqs": 8, "num_kv_blocks": 300}


def bench_of(**settings: Any) -> StepBench:
    engine = build_engine(EngineConfig(model=AR, **LOW | settings))
    return StepBench(engine, ProfilePrompts(engine.vocab_size, engine.tokenizer, 0))


@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_queues_of_several_depths_are_looked_up(cache: str) -> None:
    """Whatever the policy of the engine: by itself fcfs never asks the cache about who waits."""
    bench = bench_of(prefix_cache=cache)
    served, queued = bench.serve(0)
    assert not served["scanned_requests"].any()
    assert set(queued["source"].tolist()) == {"queued"}
    assert len(queued) <= STEPS * len(DEPTHS)
    scanned = queued["scanned_requests"]
    assert np.count_nonzero(scanned) >= 12, "few steps would not make a price"
    assert scanned.max() > max(DEPTHS) > 0 == scanned.min()
    assert (queued["prefill_kv_tokens"] > 0).any(), "some find their beginning in the cache"
    assert (queued["gpu_ns"] > 0).all()


def test_every_run_is_another_and_no_two_of_their_steps_are_one_shape() -> None:
    bench = bench_of()
    first, second = (bench.serve(number)[-1] for number in (0, 1))
    assert first["scanned_requests"].tolist() != second["scanned_requests"].tolist()
    shapes = [*first["shape"].tolist(), *second["shape"].tolist()]
    assert len(set(shapes)) == len(shapes)


def test_the_measured_engine_is_not_affected() -> None:
    bench = bench_of()
    bench.visit(Shape("decode", (40, 5, 300), steps=2))
    bench.serve(0)
    again = bench.visit(Shape("decode", (40, 5, 300), steps=2))
    assert again["decode_kv_tokens"].tolist() == [345, 348]
    assert not again["scanned_requests"].any()
    engine = bench.engine
    assert engine.scheduler.config.scheduler == "fcfs"
    assert not engine.has_unfinished
    assert engine.executor.free_slots == 8
    engine.scheduler.check()


def test_a_policy_of_the_kind_stays_and_nothing_keeps_it_from_asking() -> None:
    config = bench_of(
        scheduler="hrrn", lpm_max_queue=2, fairness_ms=0.0, fairness_tokens=0
    ).engine.scheduler.config
    chosen = queueing(config)
    assert (chosen.scheduler, chosen.lpm_max_queue) == ("hrrn", max(DEPTHS))
    assert chosen.fairness_ms is chosen.fairness_tokens is None
    aged = bench_of(scheduler="sjf", sjf_aging_ms=5.0).engine.scheduler.config
    assert queueing(aged).scheduler == "lpm"


def test_a_mixture_of_experts_has_queues_too_whichever_experts_were_forced_before(experts: str) -> None:
    model = build_model(load_model_config(experts), device="cpu", load_format="dummy", path=experts)
    forced = ForcedExperts(model, 2048)
    engine = build_engine(EngineConfig(model=experts, load_format="dummy", **LOW), model=model)
    bench = StepBench(engine, ProfilePrompts(300, None, 0), forced)
    bench.visit(Shape("experts", (20,) * 4, experts=2))
    (queued,) = bench.serve(0)
    assert queued["scanned_requests"].any()
    assert forced.active(512) == 16, "every token has experts of its own again"


@given(
    seqs=st.integers(1, 256),
    pages=st.integers(8, 4000),
    length=st.integers(40, 8192),
    size=st.sampled_from([16, 32, 256]),
    depth=st.integers(1, 128),
)
def test_queued_requests_can_be_served(seqs: int, pages: int, length: int, size: int, depth: int) -> None:
    limits = ShapeLimits(seqs, 2048, length, pages, size)
    shared = prefix_tokens(limits)
    assert shared % size == 0
    for _, own, answer in waiting_requests(limits, Random(depth), depth):
        assert own >= 1
        assert shared + own + answer <= min(length, pages // min(4, seqs) * size)
