"""The simulator forms the engine's batches, round by round, given its arrivals and round times."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stub_blocks import CHOICES, VOCAB, StubModel, params, run_all, stub_engine
from virtual_clock import UnevenClock

from blis_py.calibrate.parity import replay_steps
from blis_py.cli import main
from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.errors import InputError
from blis_py.traces.samples import samples_of
from blis_py.traces.steplog import read_step_log, write_step_log
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.sequence import Sequence


def busy_run(seed: int, requests: int = 40, model: StubModel | None = None, **given: Any) -> DiffusionEngine:
    """Requests come while others run, between rounds too: shared prefixes, aborts, deadlines, idle times."""
    rng = Random(seed)
    clock = UnevenClock(seed, given.pop("tick_ns", 10_000))
    engine = stub_engine(given.pop("algorithm", "LowConfidence"), model, clock, **given)
    beginnings = [[rng.randrange(1, VOCAB) for _ in range(96)] for _ in range(3)]
    sequences: list[Sequence] = []

    def arrive(chance: float) -> None:
        while len(sequences) < requests and rng.random() < chance:
            prompt = rng.choice(beginnings)[: rng.randrange(97)]
            prompt = prompt + [rng.randrange(VOCAB) for _ in range(rng.choice([0, 1, 31, 33]))]
            deadline = engine.clock.now_ns() + rng.randrange(10**7) if rng.random() < 0.1 else -1
            limits = params(rng.randint(1, 70))
            priority = rng.choice([0, 1, 5])
            sequences.append(engine.add_request(prompt, limits, priority=priority, deadline_ns=deadline))

    def poll() -> None:
        arrive(0.1)
        if sequences and rng.random() < 0.01:
            engine.abort_request(rng.choice(sequences).request.id)

    engine.poll = poll
    while len(sequences) < requests or engine.has_unfinished:
        arrive(0.3)
        if rng.random() < 0.1:
            engine.clock.wait_until(engine.clock.now_ns() + rng.randrange(10**5))
        engine.step()
    return engine


CONFIGS: dict[str, dict[str, Any]] = {
    "roomy": {"num_kv_blocks": 128},
    "tight": {"num_kv_blocks": 9, "max_num_batched_tokens": 160},
    "no-prefix-cache": {"num_kv_blocks": 9, "enable_prefix_caching": False, "preemption_policy": "priority"},
    "radix": {"num_kv_blocks": 24, "prefix_cache": "radix"},
    "no-reuse": {"num_kv_blocks": 24, "reuse_in_place": False},
    "no-reloop": {"num_kv_blocks": 24, "reloop": False, "block_size": 64},
}


@pytest.mark.parametrize("fdfo", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_simulator_forms_the_same_batches(name: str, fdfo: bool) -> None:
    """Every configuration with both modes and both schedulers, every scheduler with both modes."""
    scheduler = "fcfs" if fdfo == bool(list(CONFIGS).index(name) % 2) else "priority-fcfs"
    log = busy_run(1, scheduler=scheduler, fdfo=fdfo, **CONFIGS[name]).recorder.log()
    parity = replay_steps(log)
    assert parity.first is None
    assert parity.identical == parity.steps == len(log) > 100


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    algorithm=st.sampled_from(CHOICES),
    fdfo=st.booleans(),
    reloop=st.booleans(),
    pages=st.integers(9, 40),
    slots=st.integers(1, 6),
    tick_ns=st.sampled_from([10, 1000, 10**4, 10**5, 10**6]),
)
# A batch went back to the scheduler at the deadline of a request that had long been served.
@example(seed=149, algorithm=CHOICES[0], fdfo=True, reloop=True, pages=17, slots=1, tick_ns=1000)
def test_whatever_happens(
    seed: int, algorithm: Any, fdfo: bool, reloop: bool, pages: int, slots: int, tick_ns: int
) -> None:
    engine = busy_run(
        seed,
        25,
        algorithm=algorithm,
        fdfo=fdfo,
        reloop=reloop,
        num_kv_blocks=pages,
        max_num_seqs=slots,
        tick_ns=tick_ns,
    )
    assert replay_steps(engine.recorder.log()).first is None


def test_a_batch_that_returned_for_a_request_that_another_then_overtook_is_formed_alike() -> None:
    """The first could be admitted when the engine decided; one that came before the schedule could not."""
    settings = {"num_kv_blocks": 9, "max_num_seqs": 4, "max_num_batched_tokens": 320, "tick_ns": 10**6}
    engine = busy_run(13840, 25, algorithm=TopKPerStep(5), scheduler="priority-fcfs", **settings)
    log = engine.recorder.log()
    assert log.steps["batch"][51:53] == [26, 27]
    assert (log.steps["admitted_ids"][52], log.steps["preempted_ids"][52]) == ((), ())
    assert replay_steps(log).first is None


def test_a_batch_that_returned_for_a_waiting_request_that_an_arrival_then_overtook_is_formed_alike() -> None:
    """One that had lost its place could be admitted again; the only arrival before the schedule could not."""
    settings = {"num_kv_blocks": 16, "max_num_seqs": 6, "max_num_batched_tokens": 256, "tick_ns": 10}
    engine = busy_run(1485, 25, scheduler="priority-fcfs", prefix_cache="radix", **settings)
    log = engine.recorder.log()
    assert log.steps["preempted_ids"][33] == (9,)
    assert log.steps["batch"][33:35] == [14, 15]
    assert log.steps["admitted_ids"][34] == ()
    assert log.requests["enqueue_ns"].count(log.steps["start_ns"][34]) == 1
    assert replay_steps(log).first is None


def test_a_failed_round_ends_the_comparison() -> None:
    engine = busy_run(2, model=StubModel(fail_at=60))
    log = engine.recorder.log()
    assert sum(log.steps["failed"]) == 1
    parity = replay_steps(log)
    assert parity.first is None
    assert parity.identical == parity.steps == log.steps["failed"].index(1)


@pytest.mark.parametrize("name", ["steps.csv", "steps.csv.gz", "steps.parquet"])
def test_a_log_comes_back_as_it_was_written(tmp_path: Path, name: str) -> None:
    log = busy_run(3, 15).recorder.log()
    write_step_log(log, tmp_path / name)
    read = read_step_log(tmp_path / name)
    assert (read.meta, read.steps, read.requests) == (log.meta, log.steps, log.requests)
    assert isinstance(read.features(5), DiffusionFeatures)
    assert replay_steps(read).first is None


def test_another_batch_is_noticed() -> None:
    log = busy_run(4, 15).recorder.log()
    row = next(i for i, rounds in enumerate(log.requests["block_rounds"]) if rounds)
    log.requests["block_rounds"][row] = (
        1 + log.requests["block_rounds"][row][0],
        *log.requests["block_rounds"][row][1:],
    )
    parity = replay_steps(log)
    assert parity.first is not None
    assert parity.identical < parity.steps


def test_the_log_states_what_every_round_did() -> None:
    engine = stub_engine("LowConfidence", max_num_seqs=2)
    sequences = [engine.add_request([1] * 70, params(40)), engine.add_request([2], params(9))]
    run_all(engine)
    log = engine.recorder.log()
    counters = engine.scheduler.counters
    assert len(log) == counters.rounds
    assert max(log.steps["batch"]) + 1 == counters.batches
    assert sum(log.steps["denoise_blocks"]) == counters.block_rounds
    assert sum(log.steps["commit_blocks"]) == counters.committed_blocks
    assert sum(log.steps["prefill_blocks"]) * 32 == counters.prefill_tokens == 64
    assert sum(log.steps["emitted_rows"]) == engine.executor.model.lm_head_rows  # type: ignore[attr-defined]
    assert sum(map(len, log.steps["committed_ids"])) == counters.committed_blocks
    assert log.requests["block_rounds"] == [tuple(s.request.rounds_per_block) for s in sequences]  # type: ignore[attr-defined]
    for first, second in zip(log.steps["end_ns"], log.steps["start_ns"][1:], strict=False):
        assert first <= second
    segments = [
        log.steps[name] for name in ("schedule_ns", "prepare_ns", "launch_ns", "sample_ns", "finish_ns")
    ]
    for start, end, *parts in zip(log.steps["start_ns"], log.steps["end_ns"], *segments, strict=True):
        assert start + sum(parts) == end


def test_one_round_of_each_batch_begins_it_in_log_and_samples() -> None:
    engine = stub_engine("LowConfidence", max_num_seqs=2)
    engine.add_request([1] * 70, params(40))
    run_all(engine)
    log = engine.recorder.log()
    begins = [log.features(index).begins_batch for index in range(len(log))]  # type: ignore[attr-defined]
    assert sum(begins) == engine.scheduler.counters.batches < len(log)
    assert begins[0] == 1
    assert samples_of(log, "run")["begins_batch"].tolist() == begins


def test_a_log_of_another_engine_is_refused() -> None:
    log = busy_run(5, 5).recorder.log()
    del log.meta["diffusion"]
    with pytest.raises(InputError, match="not one of block diffusion"):
        replay_steps(log)


def test_blis_parity_compares_rounds_and_states_where_they_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = busy_run(4, 15).recorder.log()
    write_step_log(log, tmp_path / "steps.csv")
    assert main(["parity", str(tmp_path), "--require", "100", "--format", "table"]) == 0
    assert f"{len(log)} of {len(log)} steps are identical (100 %)" in capsys.readouterr().out.replace(",", "")
    row = next(i for i, rounds in enumerate(log.requests["block_rounds"]) if rounds)
    log.requests["block_rounds"][row] = (99, *log.requests["block_rounds"][row][1:])
    write_step_log(log, tmp_path / "steps.csv")
    assert main(["parity", str(tmp_path), "--require", "100", "--format", "table"]) == 1
    assert "only the engine commits blocks of" in capsys.readouterr().out
