"""What a configuration cannot say: another rate, other lengths, other step times."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import blis_py as blis
from blis_py.api import Simulation, configure
from blis_py.core.features import StepFeatures
from blis_py.latency.base import LatencyModel, overlapped
from blis_py.latency.scaled import scaled
from blis_py.planning.job import Job, Variation
from blis_py.planning.worker import outcome_of, varied

DECODE = StepFeatures(decode_seqs=7, decode_kv_tokens=5000, max_context=900, emitted_rows=7)
MIXED = StepFeatures(
    prefill_seqs=2,
    prefill_tokens=300,
    prefill_pairs=45_000,
    prefill_kv_tokens=64,
    prefill_prompt_pairs=90_000.0,
    decode_seqs=5,
    decode_kv_tokens=4000,
    max_context=900,
    emitted_rows=7,
)


def model(name: str) -> LatencyModel:
    if name == "fitted":
        profile = Path(__file__).resolve().parents[2] / "profiles" / "fits" / "cpu" / "tiny-ar"
        return Simulation.of(configure(profile=str(profile), num_requests=2)).latency
    return Simulation.of(configure(model="llama-3.1-8b", latency_model=name, num_requests=2)).latency


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", ["trained", "roofline", "trained-physics", "fitted"])
def test_a_run_of_scaled_steps_is_the_sum_of_its_steps(name: str, hidden: bool) -> None:
    other = scaled(model(name), gpu=0.83, host=1.37)
    other = overlapped(other) if hidden else other
    ends = other.decode_run(DECODE, 300, start_ns=11).ends_ns()
    steps = [other.step_ns(DECODE.after(done)) for done in range(300)]
    assert ends.tolist() == (11 + np.cumsum(steps)).tolist()
    until = int(ends[150])
    assert other.decode_run(DECODE, 300, 11, until).end_ns == until
    assert other.decode_run(DECODE, 300, 11, until + 1).end_ns == ends[151]


@pytest.mark.parametrize("name", ["trained", "roofline", "trained-physics", "fitted"])
@pytest.mark.parametrize("features", [DECODE, MIXED])
def test_the_parts_of_a_step_are_scaled_by_themselves(name: str, features: StepFeatures) -> None:
    before, after = model(name).step(features), scaled(model(name), gpu=2.0, host=3.0).step(features)
    assert after.gpu_ns == pytest.approx(2 * before.gpu_ns, abs=2)
    assert after.host_ns == pytest.approx(3 * before.host_ns, abs=2)


def test_factors_of_one_change_nothing() -> None:
    config = configure(model="llama-3.1-8b", num_requests=80, rate=30)
    again = scaled(model("trained"))
    plain = blis.run(config).summary["cluster"]
    assert varied(Job(config)).run().summary["cluster"] == plain
    assert [again.step_ns(f) for f in (DECODE, MIXED)] == [
        model("trained").step_ns(f) for f in (DECODE, MIXED)
    ]


def test_a_higher_rate_brings_the_same_requests_closer_together() -> None:
    config = configure(model="llama-3.1-8b", num_requests=200, rate=10)
    plain, twice = varied(Job(config)).table, varied(Job(config, Variation(rate=2.0))).table
    assert np.abs(twice.arrival_ns * 2 - plain.arrival_ns).max() <= 1
    assert (twice.prompt_tokens == plain.prompt_tokens).all()
    waits = [t.deadline_ns - t.arrival_ns for t in (plain, twice)]
    assert np.abs(waits[0] - waits[1]).max() <= 1


def test_longer_prompts_share_longer_prefixes() -> None:
    config = configure(model="llama-3.1-8b", workload="rag-nested", num_requests=150)
    plain, longer = varied(Job(config)).table, varied(Job(config, Variation(prompt=1.2))).table
    assert longer.prompt_tokens.sum() == pytest.approx(1.2 * plain.prompt_tokens.sum(), rel=0.01)
    assert (longer.output_tokens == plain.output_tokens).all()
    for one, other in zip(plain.contents, longer.contents, strict=True):
        assert [name for name, _ in one] == [name for name, _ in other]
        assert abs(sum(t for _, t in other) - 1.2 * sum(t for _, t in one)) <= 1
    hits = [Simulation.of(config, lambda c, t=t: _demand(config, t)).run() for t in (plain, longer)]
    rates = [result.summary["cluster"]["prefix_hit_rate"] for result in hits]
    assert rates[1] == pytest.approx(rates[0], abs=0.05)


def _demand(config, table):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    from blis_py.setup.from_config import demand

    return replace(demand(config), table=table)


def test_longer_answers_end_where_their_clients_meant_them_to() -> None:
    config = configure(model="llama-3.1-8b", num_requests=50)
    longer = varied(Job(config, Variation(output=1.2))).table
    assert (longer.max_tokens == longer.output_tokens).all()
    assert (varied(Job(config, Variation(output=0.0001))).table.output_tokens == 1).all()


def test_more_kv_blocks_are_more_blocks() -> None:
    config = configure(model="llama-3.1-8b", num_requests=5)
    before = varied(Job(config)).scheduler.num_kv_blocks
    assert varied(Job(config, Variation(kv_blocks=1.25))).scheduler.num_kv_blocks == round(before * 1.25)


def test_what_is_offered_is_the_gaps_over_the_time_between_first_and_last(tmp_path: Path) -> None:
    rows = "".join(f"{second},10,2\n" for second in (3, 3, 5, 8))
    (tmp_path / "t.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    config = configure(model="llama-3.1-8b", trace=str(tmp_path / "t.csv"))
    facts = outcome_of(varied(Job(config)).run()).facts
    assert (facts["requests"], facts["span_s"], facts["offered_per_s"]) == (4, 5.0, 3 / 5)
    closed = outcome_of(varied(Job(configure(model="llama-3.1-8b", num_requests=4, concurrency=2))).run())
    assert (closed.facts["span_s"], closed.facts["offered_per_s"]) == (0.0, None)
