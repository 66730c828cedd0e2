"""Everything that reads what a user wrote: each reader by itself, and each command with each kind of file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scenario

from blis_py.calibrate.fit.imports import import_steps
from blis_py.calibrate.read_times import read_token_times
from blis_py.config.loader import dump, load_config
from blis_py.config.policy import read_bundle
from blis_py.figures.several import points_of
from blis_py.files.json_files import load_object
from blis_py.files.yaml_files import load_mapping
from blis_py.hardware.gpu import load_gpu
from blis_py.latency.fitted_profile import read_profile
from blis_py.latency.layer_profile import read_layer_profile
from blis_py.latency.operator_tables import read_operator_tables
from blis_py.latency.trained import read_training
from blis_py.models.model_shape import load_model
from blis_py.planning.axes import read_space
from blis_py.report.saved import load
from blis_py.traces import read_trace
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.diffusion_rounds import read_rounds
from blis_py.traces.itl import read_gaps
from blis_py.traces.reading import Reading
from blis_py.traces.samples import read_samples
from blis_py.traces.steplog import read_step_log
from blis_py.workload import generate
from blis_py.workload.diffusion import diffusion_client
from blis_py.workload.spec import load_spec

SAVED = ("requests.csv", "steps.csv", "summary.json", "config.yaml", "itl.csv")
"""Files of a result."""


@dataclass(frozen=True)
class Reader:
    """`file` is changed, and then `read` is called with the folder it is in."""

    file: str
    read: Callable[[Path], Any]


@dataclass(frozen=True)
class Command:
    """`file` is changed, and then the command line is run; `{}` in it is the folder."""

    file: str
    line: str
    codes: tuple[int, ...] = (0, 2)

    def arguments(self, folder: Path) -> list[str]:
        return [word.replace("{}", str(folder)) for word in self.line.split()]


def _trace(name: str) -> Callable[[Path], Any]:
    return lambda folder: read_trace(folder / name)


def _skipping(name: str) -> Callable[[Path], Any]:
    return lambda folder: read_trace(folder / name, reading=Reading(bad=BadRows(skip=True)))


def _generated(folder: Path) -> Any:
    spec = load_spec(folder / "spec.yaml", classes=("gold",))
    return generate(spec, num_requests=20)


def _configured(folder: Path) -> Any:
    config = load_config(folder / "config.yaml")
    (folder / "again.yaml").write_text(dump(config), encoding="utf-8")
    assert load_config(folder / "again.yaml") == config, (
        "the configuration is not read back as it was written"
    )


def _kernels(folder: Path) -> Any:
    return read_layer_profile(folder / "kernels", load_model("llama-3.1-8b"), load_gpu("h100"), 1)


def _operators(folder: Path) -> Any:
    return read_operator_tables(folder / "operators", load_model("llama-3.1-8b"), load_gpu("h100"), 1)


def _table(folder: Path) -> Any:
    roles = {
        "arrival": "arrival_s",
        "input": "input_tokens",
        "output": "output_tokens",
        "tenant_id": "tenant_id",
    }
    return read_trace(folder / "azure.csv", reading=Reading(columns=roles))


def _recordings() -> dict[str, Reader]:
    """A reader for every format of recorded traffic that has a sample."""
    files = sorted(scenario.FORMATS.iterdir())
    return {
        f"recording of {file.stem}": Reader(f"formats/{file.name}", _trace(f"formats/{file.name}"))
        for file in files
    }


def _dllm(folder: Path) -> Any:
    return diffusion_client(load_mapping(folder / "dllm.yaml"), file=folder / "dllm.yaml")


def _saved(folder: Path) -> Any:
    """All that the files of a result tell."""
    saved = load(folder / "saved")
    return saved.summary, saved.requests, saved.steps, saved.view, saved.notes, saved.settings


def _servegen(folder: Path) -> Any:
    return generate(load_spec(folder / "servegen"), num_requests=30)


READERS: dict[str, Reader] = {
    **_recordings(),
    **{f"saved {name}": Reader(f"saved/{name}", _saved) for name in SAVED},
    "saved marker": Reader("saved/complete.json", _saved),
    "settings of a sweep": Reader(
        "swept/sweep.yaml", lambda folder: points_of(folder / "swept" / "sweep.csv")
    ),
    "table of a sweep": Reader("swept/sweep.csv", lambda folder: points_of(folder / "swept" / "sweep.csv")),
    "space": Reader("space.yaml", lambda folder: read_space(folder / "space.yaml")),
    "results of BLIS": Reader("results.json", lambda folder: read_token_times(folder / "results.json")),
    "metrics of BLIS": Reader("metrics.json", lambda folder: read_token_times(folder / "metrics.json")),
    "servegen rates": Reader("servegen/chunk-0-trace.csv", _servegen),
    "servegen lengths": Reader("servegen/chunk-0-dataset.json", _servegen),
    "inference-perf": Reader(
        "inference-perf.yaml",
        lambda folder: generate(load_spec(folder / "inference-perf.yaml"), horizon_ns=10**9),
    ),
    "any table": Reader("azure.csv", _table),
    "azure": Reader("azure.csv", _trace("azure.csv")),
    "azure with a clock": Reader("clock.csv", _trace("clock.csv")),
    "azure, bad rows skipped": Reader("azure.csv", _skipping("azure.csv")),
    "mooncake": Reader("mooncake.jsonl", _trace("mooncake.jsonl")),
    "mooncake, bad rows skipped": Reader("mooncake.jsonl", _skipping("mooncake.jsonl")),
    "tracev2": Reader("trace.csv", _trace("trace.csv")),
    "tracev2, bad rows skipped": Reader("trace.csv", _skipping("trace.csv")),
    "tracev2 header": Reader("trace.yaml", _trace("trace.csv")),
    "token gaps": Reader("itl.csv", lambda folder: read_gaps(folder / "itl.csv", np.arange(8))),
    "token times": Reader("trace.csv", lambda folder: read_token_times(folder / "trace.csv")),
    "block rounds": Reader("block_rounds.csv", lambda folder: read_rounds(folder / "block_rounds.csv")),
    "step log": Reader("engine/steps.csv", lambda folder: read_step_log(folder / "engine" / "steps.csv")),
    "step log requests": Reader(
        "engine/steps.requests.csv", lambda folder: read_step_log(folder / "engine" / "steps.csv")
    ),
    "samples": Reader("samples.csv", lambda folder: read_samples(folder / "samples.csv")),
    "vllm steps": Reader(
        "vllm_steps.csv", lambda folder: import_steps(folder / "vllm_steps.csv", model="qwen3-0.6b")
    ),
    "workload spec": Reader("spec.yaml", _generated),
    "weights": Reader("weights.yaml", _generated),
    "configuration": Reader("config.yaml", _configured),
    "policy bundle": Reader("bundle.yaml", lambda folder: read_bundle(folder / "bundle.yaml")),
    "gpu": Reader("gpu.yaml", lambda folder: load_gpu(folder / "gpu.yaml")),
    "model": Reader("model.json", lambda folder: load_model("mine", folder / "model.json")),
    "json": Reader("model.json", lambda folder: load_object(folder / "model.json")),
    "profile": Reader("fit/profile.yaml", lambda folder: read_profile(folder / "fit")),
    "kernel meta": Reader("kernels/meta.yaml", _kernels),
    "kernel table": Reader("kernels/dense.csv", _kernels),
    "kernel attention": Reader("kernels/attention.csv", _kernels),
    "operator gemm": Reader("operators/gemm_perf.csv", _operators),
    "operator attention": Reader("operators/generation_attention_perf.csv", _operators),
    "block diffusion": Reader("dllm.yaml", _dllm),
    "denoise sequences": Reader("sequences.csv", _dllm),
    "trained coefficients": Reader(
        "coefficients.yaml", lambda folder: read_training(folder / "coefficients.yaml")
    ),
}

_RUN = "run --model qwen3-14b --format json"
_REPLAY = "replay --model qwen3-14b --format json"
_SMALL = "--num-requests 6 --output-tokens 8 --output-tokens-stdev 2 --rate 20"
_DLLM = f"run --model llada2.0-mini --latency-model roofline --block-size 32 --max-num-seqs 8 {_SMALL}"
_DLLM += " --format json"
_PLAN = (
    "plan --model qwen3-14b --latency-model roofline --num-requests 4 --rate 5 --slo ttft.p99=2s --draws 0"
)
_PLAN += " --no-tuning --most-requests 20"
_PLAN += " --output-tokens 8 --output-tokens-stdev 2 --instances 1:2 --trials 2 --workers 1"
_PLAN += " --no-cache --format json"
_PROFILE = "--out {}/out --bootstrap 2 --format json"
COMMANDS: dict[str, Command] = {
    "run --config": Command("config.yaml", "run --config {}/config.yaml --format json"),
    "run --workload-spec": Command("spec.yaml", f"{_RUN} --workload-spec {{}}/spec.yaml --num-requests 12"),
    "run --gpu": Command("gpu.yaml", f"{_RUN} --gpu {{}}/gpu.yaml {_SMALL}"),
    "run --gpu, roofline": Command(
        "gpu.yaml", f"{_RUN} --gpu {{}}/gpu.yaml --latency-model roofline {_SMALL}"
    ),
    "run --gpu, trained": Command("gpu.yaml", f"{_RUN} --gpu {{}}/gpu.yaml --latency-model trained {_SMALL}"),
    "run --policy-config": Command("bundle.yaml", f"{_RUN} --policy-config {{}}/bundle.yaml {_SMALL}"),
    "run --profile": Command("fit/profile.yaml", f"run --profile {{}}/fit --format json {_SMALL}"),
    "run --kernel-profile": Command(
        "kernels/attention.csv",
        f"run --model llama-3.1-8b --latency-model kernel-tables --kernel-profile {{}}/kernels "
        f"--format json {_SMALL}",
    ),
    "run --kernel-profile, operators": Command(
        "operators/gemm_perf.csv",
        f"run --model llama-3.1-8b --latency-model kernel-tables --kernel-profile {{}}/operators "
        f"--format json {_SMALL}",
    ),
    "run --dllm-workload": Command("dllm.yaml", f"{_DLLM} --dllm-workload {{}}/dllm.yaml"),
    "run --dllm-config": Command(
        "parameters.yaml", f"{_DLLM} --dllm-workload {{}}/dllm.yaml --dllm-config {{}}/parameters.yaml"
    ),
    "replay azure": Command("azure.csv", f"{_REPLAY} --trace {{}}/azure.csv"),
    "replay azure, skipping": Command("azure.csv", f"{_REPLAY} --trace {{}}/azure.csv --skip-bad-rows"),
    "convert": Command("formats/vllm.json", "convert {}/formats/vllm.json {}/converted.jsonl"),
    "compose": Command("spec.yaml", "compose --from {}/spec.yaml --from chat --out {}/composed.yaml"),
    "convert servegen": Command("servegen/chunk-0-trace.csv", "convert servegen --path {}/servegen"),
    "convert inference-perf": Command(
        "inference-perf.yaml", "convert inference-perf --spec {}/inference-perf.yaml"
    ),
    "run --workload, inference-perf": Command(
        "inference-perf.yaml", f"{_RUN} --workload {{}}/inference-perf.yaml --num-requests 6"
    ),
    "compare": Command("other/requests.csv", "compare {}/saved {}/other --format json"),
    "compare, summaries": Command("other/summary.json", "compare {}/saved {}/other --format json"),
    "explain": Command("saved/config.yaml", "explain {}/saved --no-what-ifs --format json"),
    "plot": Command("saved/requests.csv", "plot {}/saved --figure ttft --out {}/figures"),
    "plot, steps": Command("saved/steps.csv", "plot {}/saved --figure batch --out {}/figures"),
    "plot, sweep": Command("swept/sweep.csv", "plot {}/swept --figure throughput_latency --out {}/figures"),
    "sweep --space": Command("space.yaml", f"{scenario.SWEEP} --format json"),
    "plan --space": Command("space.yaml", f"{_PLAN} --space {{}}/space.yaml"),
    "calibrate, header": Command("engine/trace.yaml", "calibrate {}/engine --results {}/run --format json"),
    "calibrate, results of BLIS": Command(
        "results.json", "calibrate {}/run --sim-results {}/results.json --format json"
    ),
    "compose traces": Command(
        "azure.csv", "compose --from {}/azure.csv --from {}/mooncake.jsonl --out {}/composed.csv"
    ),
    "replay mooncake": Command(
        "mooncake.jsonl", f"{_REPLAY} --trace {{}}/mooncake.jsonl --prefix-cache radix"
    ),
    "replay tracev2": Command("trace.csv", f"{_REPLAY} --trace {{}}/trace.csv --routing-policy least-loaded"),
    "replay tracev2 header": Command("trace.yaml", f"{_REPLAY} --trace {{}}/trace.csv --rate 10"),
    "calibrate": Command("engine/trace.csv", "calibrate {}/engine --results {}/run --format json"),
    "calibrate --itl-data": Command(
        "itl.csv", "calibrate {}/trace.csv --itl-data {}/itl.csv --results {}/run --format json"
    ),
    "calibrate --autopsy": Command(
        "engine/steps.csv", "calibrate {}/engine --results {}/run --autopsy --format json"
    ),
    "parity": Command("engine/steps.csv", "parity {}/engine --format json"),
    "parity, requests": Command("engine/steps.requests.csv", "parity {}/engine --format json"),
    "profile show": Command("fit/profile.yaml", "profile show {}/fit --format json"),
    "profile compare": Command("fit/profile.yaml", "profile compare {}/fit cpu/tiny-ar --format json"),
    "profile validate": Command(
        "engine/steps.csv", "profile validate {}/fitted --step-log {}/engine --format json"
    ),
    "profile fit": Command("samples.csv", f"profile fit {{}}/samples.csv {_PROFILE}"),
    "profile fit, step log": Command("engine/steps.csv", f"profile fit {{}}/engine {_PROFILE}"),
    "profile import": Command(
        "vllm_steps.csv", f"profile import {{}}/vllm_steps.csv --model qwen3-0.6b {_PROFILE}"
    ),
}
