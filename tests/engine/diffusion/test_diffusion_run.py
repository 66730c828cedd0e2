"""`blis engine run` with a block-diffusion model, and the way from there to a prediction and its autopsy."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from stub_blocks import VOCAB, stub_engine

from blis_py.calibrate.autopsy import Autopsy, autopsy
from blis_py.calibrate.autopsy_runs import autopsy_of_runs
from blis_py.calibrate.diffusion_blocks import recorded_blocks
from blis_py.calibrate.parity import replay_steps
from blis_py.calibrate.read_times import read_token_times
from blis_py.calibrate.recorded import scheduler_config
from blis_py.calibrate.rerun import measured_times, replay_record, rerun
from blis_py.cli import main
from blis_py.cluster.instances.diffusion import DiffusionCosts
from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.requests.table import RequestTable
from blis_py.traces.diffusion_rounds import read_rounds
from blis_py.traces.observed import ObservedColumns
from blis_py.traces.steplog import StepLog, read_step_log
from engine.driver import serve
from engine.synthetic import synthetic_prompts
from engine.tiny import checkpoint

JsonOf = Callable[..., Any]
LIMITS = ["--max-num-seqs", "4", "--max-model-len", "256", "--num-kv-blocks", "64"]
TINY = ["--model", str(checkpoint("diffusion")), "--device", "cpu", "--clock", "cpu", *LIMITS]
LOAD = ["--num-requests", "8", "--rate", "100", "--prompt-tokens", "40", "--prompt-tokens-max", "70"]
LOAD += ["--output-tokens", "50", "--output-tokens-max", "90"]
SIMULATED = ["--model", "llada2.0-mini", "--gpu", "h200", "--latency-model", "roofline"]
SIMULATED += ["--block-size", "32", *LIMITS]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """An algorithm that is done soon, but not with every block at the same time."""
    file: Path = tmp_path_factory.mktemp("algorithm") / "quick.yaml"
    file.write_text("threshold: 0.5\n")
    return ["--dllm-config", str(file)]


@pytest.mark.parametrize("mode", ["--dllm-fdfo", "--no-dllm-fdfo"])
def test_a_run_leaves_a_folder_that_can_be_replayed_and_taken_apart(
    quick: list[str], tmp_path: Path, json_of: JsonOf, mode: str
) -> None:
    real, sim = tmp_path / "real", tmp_path / "sim"
    printed = json_of("engine", "run", *TINY, *LOAD, *quick, mode, "--out", real)["cluster"]
    assert printed["requests"]["completed"] == 8

    log, run = read_step_log(real / "steps.csv.gz"), yaml.safe_load((real / "run.yaml").read_text())
    assert run["diffusion"]["fdfo"] == (mode == "--dllm-fdfo")
    assert run["algorithm"] == "LowConfidence(threshold=0.5)"
    assert yaml.safe_load((real / "trace.yaml").read_text())["server"]["type"] == "blis-engine-diffusion"
    rounds = list(read_rounds(real / "block_rounds.csv").values())
    assert rounds == log.requests["block_rounds"]
    assert len({n for own in rounds for n in own}) > 1

    times = read_token_times(real)
    assert times.gaps is not None
    assert (times.gaps.counts + 1).tolist() == [len(own) for own in rounds], "a block comes at once"
    with (real / "trace.csv").open() as file:
        assert [int(row["num_chunks"]) for row in csv.DictReader(file)] == [len(own) for own in rounds]
    assert times.output_tokens.tolist() == log.requests["output_tokens"], "as long as the workload says"
    assert json_of("parity", real, "--require", 100)["share"] == 1.0

    workload = ["--trace", real / "trace.csv", "--dllm-workload", real / "dllm.yaml", mode]
    predicted = json_of("replay", *workload, *SIMULATED, "--record-itl", "--no-plots", "--out", sim)[
        "cluster"
    ]
    for name in ("committed_blocks", "steps_per_block", "wasted_tokens"):
        assert predicted["diffusion"][name] == printed["diffusion"][name]
    figures = json_of("calibrate", real, "--results", sim, "--autopsy")
    assert [row["latency"] for row in figures["latencies"]] == ["ttft", "itl", "tpot", "e2e"]
    causes = {cause["cause"]: cause for cause in figures["autopsy"]["causes"]}
    assert "decode" not in causes
    assert causes["rounds"]["found"] == "as recorded"
    assert causes["denoise"]["contributes"]
    for metric, error in figures["autopsy"]["error_ns"].items():
        assert error == sum(cause["share_ns"][metric] for cause in causes.values())


def test_a_trace_of_block_diffusion_is_not_replayed_as_if_it_were_autoregressive(
    quick: list[str], tmp_path: Path, json_of: JsonOf, capsys: pytest.CaptureFixture[str]
) -> None:
    real, sim, plain = tmp_path / "real", tmp_path / "sim", tmp_path / "plain"
    json_of("engine", "run", *TINY, *LOAD, *quick, "--out", real)
    arguments = ["replay", "--trace", str(real / "trace.csv"), *SIMULATED]
    assert main(arguments) == 2
    assert "--dllm-workload" in capsys.readouterr().err

    json_of(*arguments, "--dllm-workload", real / "dllm.yaml", "--no-plots", "--out", sim)
    assert main(["replay", "--trace", str(sim / "trace.csv"), *SIMULATED]) == 2
    assert "nothing says how its blocks are denoised" in capsys.readouterr().err

    json_of("run", *LOAD, *SIMULATED, "--no-plots", "--out", plain)
    with pytest.raises(InputError, match="the measured run is of block diffusion, the simulated one is not"):
        autopsy_of_runs(real, plain)


SPEC = """
version: "2"
seed: 3
aggregate_rate: 100
num_requests: 8
kind: diffusion
steps: {mean: 5, cv: 0.3}
clients:
  - id: problems
    rate_fraction: 1.0
    arrival: {process: poisson}
    input_distribution: {type: constant, params: {value: 40}}
    output_distribution: {type: constant, params: {value: 50}}
"""


def test_step_counts_of_a_workload_spec_are_compared_with_those_of_the_engine(
    quick: list[str], tmp_path: Path, json_of: JsonOf
) -> None:
    real, sim, spec = tmp_path / "real", tmp_path / "sim", tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    json_of("engine", "run", *TINY, "--workload-spec", spec, *quick, "--out", real)
    json_of("run", "--workload-spec", spec, *SIMULATED, "--no-plots", "--out", sim)
    result = autopsy_of_runs(real, sim)
    rounds = next(cause for cause in result.causes if cause.name == "rounds")
    assert result.contributes(rounds)
    assert "you simulated" in rounds.found

    plain = tmp_path / "plain"
    model = ["--model", str(checkpoint("ar")), "--device", "cpu", *LIMITS]
    json_of("engine", "run", *model, "--workload-spec", spec, "--out", plain)
    with pytest.raises(InputError, match="the simulated run is of block diffusion, the measured one is not"):
        autopsy_of_runs(plain, sim)


def test_bench_replay_serves_a_block_diffusion_model(quick: list[str], json_of: JsonOf) -> None:
    result = json_of("engine", "bench", "replay", *TINY, *LOAD, *quick, "--as-fast-as-possible")
    assert result["completed"] == 8
    assert result["mean_ttft_ms"] > 0


def test_the_flags_of_block_diffusion_do_not_fit_an_autoregressive_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(checkpoint("ar")), "--device", "cpu", *LIMITS, "--no-dllm-fdfo"]
    assert main(["engine", "run", *model, *LOAD, "--out", str(tmp_path / "x")]) == 2
    assert "the model is autoregressive" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


# -- with a model that costs nothing ---------------------------------------------------------------------


def served(count: int = 30, gap_ns: int = 200_000, **given: Any) -> tuple[StepLog, ObservedColumns]:
    """A run of the stub engine; requests come while blocks are under way."""
    table = RequestTable.build(
        np.arange(count, dtype=np.int64) * gap_ns,
        np.arange(count) % 3 * 20 + 5,
        np.arange(count) % 5 * 25 + 1,
    )
    engine, observer = stub_engine(**given), ObservedColumns(table)
    serve(engine, table, synthetic_prompts(table, VOCAB, 0), observer=observer)
    assert engine.poll is None
    return engine.recorder.log(), observer


@pytest.mark.parametrize("fdfo", [True, False])
def test_the_client_sees_each_block_when_it_is_committed(fdfo: bool) -> None:
    log, observer = served(fdfo=fdfo)
    assert observer.counts() == {"injected": 30, "ok": 30}
    ends: dict[int, list[int]] = {number: [] for number in log.requests["number"]}
    for numbers, end_ns in zip(log.steps["committed_ids"], log.steps["end_ns"], strict=True):
        for number in numbers:
            ends[number].append(end_ns)
    for number, request in enumerate(observer.requests):
        assert len(request.token_ns) == len(log.requests["block_rounds"][number]) == len(ends[number])
        assert all(seen >= end for seen, end in zip(request.token_ns, ends[number], strict=True))
    assert replay_steps(log).share == 1.0


def test_requests_come_in_between_the_rounds_of_a_batch() -> None:
    log, _ = served(gap_ns=20_000, max_num_seqs=16)
    batch, starts = log.steps["batch"], log.steps["start_ns"]
    inside = {start for i, start in enumerate(starts) if i and batch[i] == batch[i - 1]}
    begins = {start for i, start in enumerate(starts) if not i or batch[i] != batch[i - 1]}
    assert inside, "some batches have several rounds"
    enqueued = set(log.requests["enqueue_ns"])
    assert enqueued <= inside | begins
    assert replay_steps(log).share == 1.0


def test_the_replay_of_measured_rounds_gives_the_times_of_the_engine() -> None:
    log, _ = served()
    record, times = replay_record(log), measured_times(log)
    assert record.emitted_tokens.tolist() == log.requests["output_tokens"]
    assert times.gaps is not None
    assert (times.gaps.counts + 1).tolist() == record.outputs.tolist()
    late_s = (record.finish_ns - record.table.arrival_ns) / 1e9 - times.e2e_s
    assert (late_s >= 0).all(), "a round lasts until the next one begins"
    assert np.median(late_s) < 0.1 * np.median(times.e2e_s)


class Planted:
    """A price per round, prompt or not, and one for the host."""

    name = provenance = "planted"
    frontend = FrontendDelays()
    uses_max_context = False

    def __init__(self, denoise_ns: int = 40_000, prompt_ns: int = 90_000, host_ns: int = 7_000) -> None:
        self.prices = denoise_ns, prompt_ns, host_ns

    def step(self, features: Any) -> StepTime:
        assert isinstance(features, DiffusionFeatures)
        denoise_ns, prompt_ns, host_ns = self.prices
        return StepTime(prompt_ns if features.prefill_blocks else denoise_ns, host_ns)

    def step_ns(self, features: Any) -> int:
        return self.step(features).synchronous_ns

    def decode_run(self, *_: Any) -> Any:
        raise AssertionError


def taken_apart(log: StepLog, **wrong: Any) -> Autopsy:
    return autopsy(log, scheduler_config(log), Planted(), blocks=replace(recorded_blocks(log), **wrong))


def test_shares_sum_to_the_error_to_the_nanosecond() -> None:
    log, _ = served()
    result = taken_apart(log)
    assert [cause.name for cause in result.causes][3:9] == [
        *("rounds", "scheduler", "denoise", "prefill", "mixed", "padded"),
    ]
    for index, error in enumerate(result.errors_ns):
        assert error == sum(cause.shares_ns[index] for cause in result.causes)
    assert set(result.bias.gpu) == {"denoise", "prefill", "mixed", "padded"}
    assert sum(bias.steps for bias in result.bias.gpu.values()) == len(log)


def test_wrong_rounds_mode_and_costs_are_found() -> None:
    log, _ = served()
    own = recorded_blocks(log)
    doubled = taken_apart(log, rounds={number: [2 * n for n in each] for number, each in own.rounds.items()})
    causes = {cause.name: cause for cause in doubled.causes}
    assert causes["rounds"].found.startswith("30 of 30 requests have others")
    assert "dllm.yaml" in causes["rounds"].fix
    assert causes["rounds"].shares_ns[doubled.metrics.index(("E2E", "mean"))] > 0
    assert not doubled.contributes(causes["scheduler"])

    synchronous = taken_apart(log, config=replace(own.config, fdfo=False))
    causes = {cause.name: cause for cause in synchronous.causes}
    assert causes["scheduler"].fix == "--dllm-fdfo"
    assert synchronous.contributes(causes["scheduler"])
    assert not synchronous.contributes(causes["rounds"])

    costly, plain = taken_apart(log, costs=DiffusionCosts(schedule_ns=10**6)), taken_apart(log)
    place = plain.metrics.index(("E2E", "mean"))
    host = [next(c for c in each.causes if c.name == "host").shares_ns[place] for each in (costly, plain)]
    assert host[0] > host[1] + 10**6


def test_a_timed_out_request_does_not_keep_a_rerun_from_ending() -> None:
    table = RequestTable.build(
        np.zeros(6, dtype=np.int64),
        np.full(6, 10),
        np.full(6, 150),
        deadline_ns=np.array([-1, 20_000, -1, 20_000, -1, -1]),
    )
    engine, observer = stub_engine(fdfo=False, max_num_seqs=2), ObservedColumns(table)
    serve(engine, table, synthetic_prompts(table, VOCAB, 0), observer=observer)
    assert observer.counts()["timeout"] == 2
    times = rerun(engine.recorder.log(), Planted(denoise_ns=100))
    assert set(times.request_id.tolist()) >= {0, 2, 4, 5}


def test_runs_of_different_kinds_have_no_autopsy() -> None:
    log, _ = served(count=5)
    with pytest.raises(InputError, match="the simulated one is not"):
        autopsy(log, scheduler_config(log), Planted())
    plain = StepLog({k: v for k, v in log.meta.items() if k != "diffusion"}, log.steps, log.requests)
    with pytest.raises(InputError, match="the measured one is not"):
        autopsy(plain, scheduler_config(log), Planted(), blocks=recorded_blocks(log))
