"""A recorded run served again by the simulator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from planted_run import CONFIG, COSTS, chat, record_run

from blis_py.calibrate.parity import predicted_steps, replay_steps
from blis_py.calibrate.recorded import recorded_requests, request_ids, scheduler_config, step_durations_ns
from blis_py.calibrate.rerun import measured_times, recorded_times, replay_record, rerun
from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError
from blis_py.latency.linear import Linear


def same(ours: TokenTimes, theirs: TokenTimes) -> None:
    assert ours.request_id.tolist() == theirs.request_id.tolist()
    assert ours.output_tokens.tolist() == theirs.output_tokens.tolist()
    for name in ("sent_s", "ttft_s", "e2e_s"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-12)
    assert ours.gaps is not None
    assert theirs.gaps is not None
    assert ours.gaps.counts.tolist() == theirs.gaps.counts.tolist()
    np.testing.assert_allclose(ours.gaps.values, theirs.gaps.values, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("cache", ["hash", "radix", "none"])
@pytest.mark.parametrize("blocks", [2000, 80], ids=["roomy", "tight"])
def test_the_model_that_made_the_run_makes_it_again(cache: str, blocks: int) -> None:
    log = record_run(chat(), dataclasses.replace(CONFIG, num_kv_blocks=blocks, prefix_cache=cache))
    assert replay_steps(log).share == 1.0
    assert predicted_steps(log, Linear(COSTS)).share == 1.0
    same(rerun(log, Linear(COSTS)), measured_times(log))


def test_jumping_and_single_steps_agree() -> None:
    log = record_run(chat(), dataclasses.replace(CONFIG, num_kv_blocks=80))
    assert sum(log.requests["preemptions"]) > 10
    assert sum(log.requests["cached_tokens"]) > 1000
    faster = Linear(dataclasses.replace(COSTS, host=dataclasses.replace(COSTS.host, step=0)))
    same(rerun(log, faster), rerun(log, faster, single_step=True))
    assert rerun(log, faster).e2e_s.mean() < 0.95 * measured_times(log).e2e_s.mean()


def test_measured_steps_give_the_engine_s_own_token_times() -> None:
    log = record_run(chat(), dataclasses.replace(CONFIG, num_kv_blocks=80), noise=0.3)
    same(recorded_times(log, replay_record(log), "replay"), measured_times(log))


def test_what_the_loop_does_between_steps_belongs_to_the_step_before() -> None:
    log = record_run(chat(), CONFIG, between_ns=70_000)
    starts, ends = log.column("start_ns"), log.column("end_ns")
    durations = step_durations_ns(log)
    idle = starts[1:] - ends[:-1] > 70_000
    assert idle.any()
    assert (durations[:-1][~idle] == np.diff(starts)[~idle]).all()
    assert (durations[:-1][idle] == (ends - starts)[:-1][idle]).all()
    assert replay_steps(log).share == 1.0


def test_other_lengths_and_settings_can_be_tried() -> None:
    log = record_run(chat(), CONFIG)
    times = measured_times(log)
    half = {
        int(i): (100, int(n) // 2 + 1) for i, n in zip(times.request_id, times.output_tokens, strict=True)
    }
    shorter = rerun(log, Linear(COSTS), lengths=half)
    assert shorter.output_tokens.tolist() == (times.output_tokens // 2 + 1).tolist()
    longer = {i: (prompt, 3 * output) for i, (prompt, output) in half.items()}
    assert (rerun(log, Linear(COSTS), lengths=longer).output_tokens > times.output_tokens).all()
    narrow = dataclasses.replace(CONFIG, max_num_seqs=1)
    assert rerun(log, Linear(COSTS), config=narrow).ttft_s.mean() > 2 * times.ttft_s.mean()


@pytest.mark.parametrize("size", [8, 16, 32])
def test_shared_prefixes_are_found_in_blocks_of_another_size(size: int) -> None:
    log = record_run(chat(), CONFIG)
    fresh = [one.request for one in recorded_requests(log, block_size=size)]
    for request, keys, of_prompt in zip(
        fresh, log.requests["block_keys"], log.requests["prompt_blocks"], strict=True
    ):
        assert len(request.block_keys) == of_prompt * 16 // size
        shared = sum(a.block_keys[:1] == request.block_keys[:1] for a in fresh)
        assert shared == sum(other[:1] == keys[:1] for other in log.requests["block_keys"])


def test_a_timed_out_request_times_out_again_and_is_not_among_the_completed() -> None:
    log = record_run(chat(deadline_ns=400_000_000), dataclasses.replace(CONFIG, num_kv_blocks=80))
    reasons = log.requests["finish_reason"]
    assert 0 < reasons.count("timeout") < len(reasons)
    same(rerun(log, Linear(COSTS)), measured_times(log))


def test_a_log_that_stopped_early_counts_only_what_had_ended() -> None:
    log = record_run(chat(), CONFIG, max_steps=400)
    assert "" in log.requests["finish_reason"]
    same(rerun(log, Linear(COSTS)), measured_times(log))


def test_requests_are_known_by_the_number_in_their_name() -> None:
    log = record_run(chat(), CONFIG)
    log.requests["id"] = [f"request_{7 * i}" for i in range(len(log.requests["id"]))]
    assert request_ids(log).tolist() == [7 * i for i in range(len(log.requests["id"]))]
    log.requests["id"][3] = "mine"
    assert request_ids(log).tolist() == log.requests["number"]


def test_a_log_without_settings_is_refused() -> None:
    log = record_run(chat(), CONFIG)
    assert scheduler_config(log) == CONFIG
    log.meta.pop("scheduler")
    with pytest.raises(InputError, match="scheduler"):
        rerun(log, Linear(COSTS))
