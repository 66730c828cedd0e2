"""The error of a prediction by its causes: what was planted is found, and the shares sum to the whole."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import Any

import numpy as np
import pytest
from planted_run import CONFIG, COSTS, chat, record_run

from blis_py.calibrate.autopsy import CAUSES, METRICS, Autopsy, as_dict, autopsy
from blis_py.calibrate.recorded import recorded_lengths
from blis_py.calibrate.rerun import measured_times, rerun
from blis_py.calibrate.step_bias import BiasCorrection, Corrected, regime_of, step_bias
from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays
from blis_py.latency.linear import Linear, LinearCoefficients
from blis_py.report.autopsy import print_autopsy

RIGHT = Linear(COSTS)
TIGHT = dataclasses.replace(CONFIG, num_kv_blocks=150)
BUSY = chat(100, 11.0)


def costs(**parts: dict[str, float]) -> LinearCoefficients:
    """The true costs with some of them multiplied."""
    changed = {
        part: dataclasses.replace(
            getattr(COSTS, part),
            **{name: getattr(getattr(COSTS, part), name) * by for name, by in of.items()},
        )
        for part, of in parts.items()
    }
    return dataclasses.replace(COSTS, **changed)


def planted(result: Autopsy, cause: str, at_least: float = 0.8) -> None:
    """`cause` is the first one, and has most of the error of E2E."""
    assert result.first.name == cause
    index = result.metrics.index(("E2E", "mean"))
    share = next(c for c in result.causes if c.name == cause).shares_ns[index]
    assert share / result.errors_ns[index] == pytest.approx(1, abs=1 - at_least)
    sums_to_the_whole(result)


def sums_to_the_whole(result: Autopsy) -> None:
    assert [cause.name for cause in result.causes] == list(CAUSES)
    for i, error in enumerate(result.errors_ns):
        assert sum(cause.shares_ns[i] for cause in result.causes) == error
    assert result.causes[-1].values_ns == result.measured_ns
    assert result.errors_ns == tuple(np.subtract(result.predicted_ns, result.measured_ns).tolist())


def test_with_every_input_right_there_is_no_error() -> None:
    log = record_run(BUSY, TIGHT)
    result = autopsy(log, TIGHT, RIGHT)
    assert set(result.errors_ns) == {0}
    assert not any(result.contributes(cause) for cause in result.causes)
    assert result.batches.share == 1.0
    assert result.metrics == METRICS
    assert (result.requests, result.left_out) == (100, 0)
    sums_to_the_whole(result)


def test_too_many_blocks() -> None:
    result = autopsy(record_run(BUSY, TIGHT), dataclasses.replace(TIGHT, num_kv_blocks=300), RIGHT)
    planted(result, "kv_capacity")
    assert "engine has 150 blocks, you simulated 300" in result.first.found
    assert result.first.fix == "--num-kv-blocks 150"
    assert result.batches.share < 1


def test_blocks_of_another_size() -> None:
    config = dataclasses.replace(TIGHT, num_kv_blocks=150, block_size=32)
    result = autopsy(record_run(BUSY, TIGHT), config, RIGHT)
    planted(result, "kv_capacity")
    assert result.first.fix == "--num-kv-blocks 150 --block-size 16"


def test_shorter_outputs() -> None:
    log = record_run(BUSY, CONFIG)
    shorter = {i: (prompt, 1 + 3 * output // 4) for i, (prompt, output) in recorded_lengths(log).items()}
    result = autopsy(log, CONFIG, RIGHT, shorter)
    planted(result, "token_counts")
    assert "outputs are 31" in result.first.found or "outputs are 32" in result.first.found
    assert "prompts no longer" in result.first.found
    assert "replay the trace" in result.first.fix


def test_another_setting() -> None:
    narrow = dataclasses.replace(CONFIG, max_num_seqs=4)
    result = autopsy(record_run(BUSY, narrow), CONFIG, RIGHT)
    planted(result, "scheduler")
    assert result.first.found == "max_num_seqs is 4 in the engine, you simulated 16"
    assert result.first.fix == "--max-num-seqs 4"


def test_decode_steps_priced_too_high() -> None:
    prices = costs(gpu={"decode_seqs": 4, "decode_kv_tokens": 4})
    result = autopsy(record_run(BUSY, CONFIG), CONFIG, Linear(prices))
    assert result.first.name == "decode"
    assert "high" in result.first.found
    assert result.first_of("TPOT", "mean").name == "decode"
    sums_to_the_whole(result)


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["decode", "prefill", "mixed"])
def test_each_regime_is_distinguished_from_the_others(regime: str) -> None:
    arrivals = chat(60, 0.2) if regime == "prefill" else BUSY
    log = record_run(arrivals, CONFIG)
    dearer = Corrected(RIGHT, {regime: BiasCorrection(1.2)}, BiasCorrection(), ())
    result = autopsy(log, CONFIG, dearer)
    cause = next(c for c in result.causes if c.name == regime)
    assert cause.shares_ns[0] > 0
    assert result.bias.gpu[regime].error == pytest.approx(0.2, abs=1e-4)
    others = [c for c in result.causes if c.name in ("decode", "prefill", "mixed") and c.name != regime]
    assert not any(result.contributes(other) for other in others)
    assert result.first_of("TPOT" if regime == "decode" else "TTFT", "mean").name == regime


def test_unpriced_padding() -> None:
    log = record_run(BUSY, CONFIG, buckets=(1, 4, 16), padding_ns=400_000)
    result = autopsy(log, CONFIG, RIGHT)
    planted(result, "padded", 0.6)
    assert result.bias.gpu["decode"].error == 0
    assert result.bias.buckets == (1, 4, 16)


def test_no_host_time_at_all() -> None:
    free = costs(host={"step": 0, "decode_seqs": 0})
    result = autopsy(record_run(BUSY, CONFIG), CONFIG, Linear(free))
    planted(result, "host", 0.9)
    assert "you simulated 0.000" in result.first.found


def test_time_between_the_steps_is_the_host_s() -> None:
    result = autopsy(record_run(BUSY, CONFIG, between_ns=900_000), CONFIG, RIGHT)
    planted(result, "host")


def test_scatter_without_bias() -> None:
    log = record_run(BUSY, CONFIG, noise=0.6)
    unbiased = autopsy(
        log,
        CONFIG,
        Corrected(
            RIGHT, {r: b.correction for r, b in step_bias(log, RIGHT).gpu.items()}, BiasCorrection(), ()
        ),
    )
    assert not unbiased.contributes(next(c for c in unbiased.causes if c.name == "decode"))
    assert unbiased.first_of("ITL", "p99").name == "scatter"
    sums_to_the_whole(unbiased)


@pytest.mark.slow
def test_the_network_between_client_and_engine() -> None:
    log = record_run(BUSY, CONFIG)
    own = measured_times(log)
    client = dataclasses.replace(own, ttft_s=own.ttft_s + 0.25, e2e_s=own.e2e_s + 0.25)
    result = autopsy(log, CONFIG, RIGHT, client=client)
    planted(result, "client", 0.999)
    assert "250.000 ms later" in result.first.found
    assert "--network-rtt-ms by +250.000" in result.first.fix
    report = autopsy(log, CONFIG, RIGHT, client=client, network_rtt_s=0.25)
    assert max(map(abs, report.errors_ns)) <= 1


def test_unmeasured_front_end_delays() -> None:
    log = record_run(BUSY, CONFIG)
    delays = FrontendDelays(before_enqueue_ns=20_000_000, per_token_ns=300_000)
    result = autopsy(log, CONFIG, Linear(dataclasses.replace(COSTS, frontend=delays)))
    planted(result, "client", 0.9)
    assert "not measured" in result.first.found


def test_what_a_server_streams_beside_is_no_error_of_the_prediction() -> None:
    """The prediction and the replay of what was recorded are as late for those who are served beside, and for
    the length of their prompts."""
    log = record_run(BUSY, CONFIG)
    alone, beside = (FrontendDelays(behind_seq_ns=ns, prompt_token_ns=ns // 100) for ns in (0, 50_000))
    models = [Linear(dataclasses.replace(COSTS, frontend=delays)) for delays in (alone, beside)]
    bare, late = (rerun(log, model) for model in models)
    assert (late.ttft_s - bare.ttft_s).max() >= 3 * 50e-6
    result = autopsy(log, CONFIG, models[1], client=late)
    assert all(abs(share) <= 2 for cause in result.causes for share in cause.shares_ns)


@pytest.mark.slow
def test_a_simulated_run_with_arrivals_of_its_own() -> None:
    log = record_run(BUSY, CONFIG)
    other = rerun(record_run(chat(100, 30.0), CONFIG), RIGHT)
    result = autopsy(log, CONFIG, RIGHT, predicted=other)
    planted(result, "workload", 0.99)
    same = autopsy(log, CONFIG, RIGHT, predicted=rerun(log, RIGHT))
    assert set(same.errors_ns) == {0}


@pytest.mark.slow
def test_without_the_times_of_single_tokens_the_neighbour_s_stand_in_and_it_is_said() -> None:
    log = record_run(BUSY, CONFIG)
    bare = dataclasses.replace(measured_times(log), gaps=None)
    result = autopsy(log, CONFIG, RIGHT, predicted=bare, client=bare)
    assert set(result.errors_ns) == {0}
    assert len(result.notes) == 2


def test_several_wrong_inputs_sum_to_the_whole() -> None:
    log = record_run(BUSY, TIGHT, noise=0.2, between_ns=40_000, buckets=(2, 8, 16), padding_ns=200_000)
    lengths = {i: (prompt + 5, output + 9) for i, (prompt, output) in recorded_lengths(log).items()}
    own = measured_times(log)
    client = dataclasses.replace(own, ttft_s=own.ttft_s + 0.004, e2e_s=own.e2e_s + 0.005)
    config = dataclasses.replace(CONFIG, max_num_seqs=9, max_num_batched_tokens=128)
    prices = Linear(costs(gpu={"step": 1.2, "prefill_tokens": 0.7}, host={"step": 0.5}))
    result = autopsy(log, config, prices, lengths, predicted=None, client=client)
    sums_to_the_whole(result)
    assert sum(result.contributes(cause) for cause in result.causes) >= 8


def test_requests_that_a_setting_refuses_are_left_out_and_counted() -> None:
    log = record_run(BUSY, CONFIG)
    result = autopsy(log, dataclasses.replace(CONFIG, max_model_len=400), RIGHT)
    assert result.left_out > 0
    assert result.requests + result.left_out == 100
    with pytest.raises(InputError, match="no request completed"):
        autopsy(log, dataclasses.replace(CONFIG, max_model_len=2), RIGHT)


def test_the_corrected_model_jumps_as_it_steps() -> None:
    model = Corrected(RIGHT, {"padded": BiasCorrection(1.31)}, BiasCorrection(1.0, 777), (4, 8))
    for seqs in (3, 4, 5):
        features = StepFeatures(decode_seqs=seqs, decode_kv_tokens=1000, max_context=300, emitted_rows=seqs)
        ends = model.decode_run(features, 30, 10**6).ends_ns()
        steps = [model.step_ns(features.after(j)) for j in range(30)]
        assert ends.tolist() == (10**6 + np.cumsum(steps)).tolist()
        short = model.decode_run(features, 30, 10**6, int(ends[7]))
        assert short.ends_ns().tolist() == ends[:8].tolist()


def test_regimes() -> None:
    assert regime_of(StepFeatures(prefill_seqs=1), (4,)) == "prefill"
    assert regime_of(StepFeatures(prefill_seqs=1, decode_seqs=3), (4,)) == "mixed"
    assert regime_of(StepFeatures(decode_seqs=3), (4,)) == "padded"
    assert regime_of(StepFeatures(decode_seqs=4), (4,)) == "decode"
    assert regime_of(StepFeatures(decode_seqs=5), (4,)) == "decode"


def test_it_reads_as_a_report_and_as_data() -> None:
    log = record_run(BUSY, TIGHT)
    result = autopsy(log, dataclasses.replace(TIGHT, num_kv_blocks=300), RIGHT)
    text = io.StringIO()
    print_autopsy(result, text)
    assert "first cause: KV capacity" in text.getvalue()
    assert "try: --num-kv-blocks 150" in text.getvalue()
    for title in CAUSES.values():
        assert f"{title}: contributes nothing" in text.getvalue() or title == "KV capacity"
    data: dict[str, Any] = json.loads(json.dumps(as_dict(result), allow_nan=False))
    assert data["first_cause"] == "kv_capacity"
    for metric, error in data["error_ns"].items():
        assert error == sum(cause["share_ns"][metric] for cause in data["causes"])
        assert error == data["predicted_ns"][metric] - data["measured_ns"][metric]
