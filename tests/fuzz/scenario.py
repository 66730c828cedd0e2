"""A folder with one small, valid file of every kind that the program reads."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "calibrate"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "latency"))

import fit_cases
import kernel_profiles
from planted_run import chat, record_run

from blis_py.cli import main
from blis_py.files.yaml_files import dump_yaml, load_mapping
from blis_py.traces.diffusion_rounds import write_rounds, write_workload
from blis_py.traces.samples import write_samples
from blis_py.traces.steplog import write_step_log

ROOT = Path(__file__).resolve().parents[2]
FORMATS = ROOT / "tests" / "traces" / "formats"
"""A small file of every format of recorded traffic."""
SPEC = """\
version: "2"
seed: 3
aggregate_rate: 20
num_requests: 12
goodput_slo_targets: {critical: {ttft_ms: 900, e2e_ms: 0}}
clients:
  - id: chat
    tenant_id: a
    slo_class: critical
    rate_fraction: 2
    arrival: {process: gamma, cv: 2}
    input_distribution: {type: gaussian, params: {mean: 100, std_dev: 10, min: 1, max: 200}}
    output_distribution: {type: constant, params: {value: 5}}
    prefixes: [{name: system, tokens: 32}, {name: document, tokens: 64, pool: 4, zipf: 1.0}]
    timeout: 90000000
  - id: talk
    rate_fraction: 1
    arrival: {process: weibull, shape: 0.8, scale: 60000}
    input_distribution: {type: exponential, params: {mean: 30}}
    output_distribution: {type: empirical, file: weights.yaml}
    closed_loop: false
    reasoning: {multi_turn: {max_rounds: 3, think_time_us: 100, context_growth: accumulate}}
    slo_target_us: 500000
  - id: batch
    slo_class: batch
    rate_fraction: 1
    arrival: {process: poisson}
    input_distribution: {type: lognormal, params: {mu: 4, sigma: 0.5}}
    output_distribution:
      type: pareto_lognormal
      params: {alpha: 3.0, xm: 10, mu: 3.0, sigma: 0.5, mix_weight: 0.3}
    prefix_group: g
    prefix_length: 48
"""
CONFIG = """\
model: qwen3-14b
gpu: h100
tp: 1
num_instances: 2
seed: 7
horizon: 20s
scheduler: {policy: priority-fcfs, max_num_seqs: 8, num_kv_blocks: 900, max_model_len: 8000}
latency: {model: linear, linear: {gpu: {step: 5.0e+6, decode_seqs: 1.0e+4}, host: {step: 1.0e+5}}}
workload: {rate: 30, num_requests: 12, output_tokens: 20, prompt_tokens_max: 600, timeout_s: 9}
routing: {policy: least-loaded, latency_us: 20}
admission: {latency_us: 5, slo_priorities: {gold: 9}}
slo: [ttft.p99=500ms]
goodput: ["ttft:500ms", "tpot:50"]
goodput_by_class: {ttft: "critical=100ms"}
"""
BUNDLE = """\
admission: {policy: always-admit, slo_priorities: {critical: 10}}
routing: {policy: least-loaded}
priority: {policy: constant}
scheduler: sjf
preemption: {policy: priority}
"""
AZURE = "arrival_s,input_tokens,output_tokens,slo_class,tenant_id\n" + "".join(
    f"{0.05 * row:.2f},{20 + row},{3 + row % 4},{'batch' if row % 2 else ''},t{row % 3}\n"
    for row in range(12)
)
AZURE_CLOCK = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{row:02}.6805900,{20 + row},{3 + row % 4}\n" for row in range(12)
)
MOONCAKE = "".join(
    json.dumps(
        {
            "timestamp": 20 * row,
            "input_length": 600 + row,
            "output_length": 4,
            "hash_ids": [1, 50 + row],
            "request_id": f"r{row}",
        }
    )
    + "\n"
    for row in range(8)
)
SPACE = """\
vary:
  scheduler: [fcfs, sjf]
  max_num_seqs: [4, 64]
"""
SWEEP = (
    "sweep --space {}/space.yaml --model qwen3-14b --latency-model roofline --num-requests 6 --rate 20 "
    "--output-tokens 8 --output-tokens-stdev 2 --workers 1 --no-cache"
)
"""A small one; `{}` is the folder."""
INFERENCE_PERF = """\
load: {type: constant, stages: [{rate: 4, duration: 2}, {rate: 8.5, duration: 1}]}
api: {type: completion}
data:
  type: shared_prefix
  shared_prefix:
    {num_groups: 3, num_prompts_per_group: 2, system_prompt_len: 32, question_len: 9, output_len: 4}
"""
DLLM = """\
kind: diffusion
block_size: 32
commit_rounds: 1
steps:
  - {algorithm: LowConfidence, parameters: {threshold: 0.9}, histogram: {4: 10, 5: 30}}
  - {algorithm: JointThreshold, mean: 12.5, cv: 0.28, cap: 32}
  - algorithm: TopKPerStep
    mixture: [{weight: 4, steps: {mean: 8, cv: 0}}, {weight: 1, steps: {histogram: {32: 1}}}]
  - {algorithm: Other, sequences: sequences.csv}
"""
GEMM = ((5120, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (6144, 4096), (128256, 4096))
"""n and k of the matrix products of llama-3.1-8b."""


def build(folder: Path) -> Path:
    """Writes all of them; the folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "spec.yaml": SPEC,
        "weights.yaml": "10: 1\n30: 3\n",
        "config.yaml": CONFIG,
        "bundle.yaml": BUNDLE,
        "azure.csv": AZURE,
        "space.yaml": SPACE,
        "inference-perf.yaml": INFERENCE_PERF,
        "clock.csv": AZURE_CLOCK,
        "mooncake.jsonl": MOONCAKE,
        "dllm.yaml": DLLM,
        "sequences.csv": "# rounds\n4,5,6\n5,5\n7\n",
        "parameters.yaml": "threshold: 0.9\n",
        "vllm_steps.csv": _vllm_steps(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    shutil.copytree(FORMATS, folder / "formats")
    shutil.copy(ROOT / "profiles" / "gpus" / "h100.yaml", folder / "gpu.yaml")
    shutil.copy(ROOT / "profiles" / "models" / "qwen3-0.6b.json", folder / "model.json")
    shutil.copy(ROOT / "profiles" / "trained" / "coefficients.yaml", folder / "coefficients.yaml")
    _small_fit(folder / "fit")
    _simulated_run(folder / "run")
    _saved_runs(folder)
    _servegen(folder / "servegen")
    log = record_run(chat(6, rate=30.0, seed=2))
    (folder / "engine").mkdir(exist_ok=True)
    write_step_log(log, folder / "engine" / "steps.csv")
    _measured_trace(folder)
    _run(["profile", "fit", str(folder / "engine"), "--out", str(folder / "fitted"), "--bootstrap", "2"])
    write_samples(fit_cases.made_up(40, noise=0.02), folder / "samples.csv")
    kernel_profiles.write(folder / "kernels")
    _operator_tables(folder / "operators")
    write_rounds(folder / "block_rounds.csv", {0: [3, 4], 1: [5]})
    write_workload(
        folder / "engine", block_tokens=32, algorithm="LowConfidence", parameters={"threshold": 0.9}
    )
    return folder


def _small_fit(folder: Path) -> None:
    """A bundled profile with two draws instead of fifty, which is read sooner."""
    folder.mkdir(exist_ok=True)
    values = load_mapping(ROOT / "profiles" / "fits" / "cpu" / "tiny-ar" / "profile.yaml")
    for regime in values["fit"]["regimes"].values():
        regime["gpu_draws"], regime["host_draws"] = regime["gpu_draws"][:2], regime["host_draws"][:2]
    (folder / "profile.yaml").write_text(dump_yaml(values), encoding="utf-8")


def _simulated_run(folder: Path) -> None:
    """What `blis run --out` leaves."""
    flags = ["--model", "qwen3-14b", "--num-requests", "8", "--rate", "20", "--output-tokens", "6"]
    flags += ["--output-tokens-stdev", "2", "--prompt-tokens", "60", "--prompt-tokens-stdev", "20"]
    _run(["run", *flags, "--out", str(folder), "--force", "--no-plots", "--record-itl"])


def _saved_runs(folder: Path) -> None:
    """Two results of the same requests that may be changed, what BLIS writes of such, and a sweep's table."""
    for name in ("saved", "other"):
        shutil.copytree(folder / "run", folder / name)
        (folder / name / "complete.json").write_text("{}")
    flags = ["--results-path", str(folder / "results.json"), "--metrics-path", str(folder / "metrics.json")]
    _run(["run", "--config", str(folder / "run" / "config.yaml"), "--no-cross-check", *flags])
    _run(
        [
            *SWEEP.replace("{}", str(folder)).split(),
            "--format",
            "json",
            "--no-plots",
            "--out",
            str(folder / "swept"),
        ]
    )
    (folder / "swept" / "complete.json").unlink(missing_ok=True)


def _servegen(folder: Path) -> None:
    folder.mkdir()
    rows = [f"{600 * window},2,1.5,{'Gamma' if window % 2 else 'Weibull'},0.4,1.2" for window in range(144)]
    (folder / "chunk-0-trace.csv").write_text("\n".join(rows) + "\n")
    lengths = {"input_tokens": "{30: 0.5, 40: 0.5}", "output_tokens": "{5: 1}", "reason_ratio": "{0.0: 1}"}
    (folder / "chunk-0-dataset.json").write_text(json.dumps({"0": lengths, "43200": lengths}))


def _run(arguments: list[str]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert main(arguments) == 0, arguments


def _measured_trace(folder: Path) -> None:
    """The client's view of the engine's run: the simulated one will do."""
    for name in ("trace.csv", "trace.yaml", "itl.csv"):
        shutil.copy(folder / "run" / name, folder / "engine" / name)
        shutil.copy(folder / "run" / name, folder / name)


def _vllm_steps() -> str:
    rng = np.random.default_rng(1)
    names = ("experiment", "prefill_reqs", "decode_reqs", "prefill_tokens", "kv_used_blocks")
    lines = [",".join((*names, "next_sampled_gap_steps", "cycle_us_mean"))]
    for _ in range(40):
        prompts, decodes = int(rng.integers(0, 3)), int(rng.integers(1, 30))
        new = prompts * int(rng.integers(10, 200))
        us = 6000 + 20 * new + 40 * decodes
        lines.append(f"one,{prompts},{decodes},{new},{decodes * 20 + new // 16},1,{us}")
    return "\n".join(lines) + "\n"


def _operator_tables(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    tables = {
        "gemm_perf": (
            ("gemm_dtype", "m", "n", "k", "latency"),
            [("bfloat16", m, n, k, 0.01 + m * n * k / 4e11) for n, k in GEMM for m in (1, 16, 256, 4096)],
        ),
        "context_attention_perf": (
            ("batch_size", "isl", "num_heads", "num_key_value_heads", "kv_cache_dtype", "latency"),
            [(1, isl, 32, 8, "bfloat16", 0.01 + isl * isl / 1e8) for isl in (16, 256, 4096)],
        ),
        "generation_attention_perf": (
            ("batch_size", "step", "num_heads", "num_key_value_heads", "kv_cache_dtype", "latency"),
            [(b, s, 32, 8, "bfloat16", 0.005 + b * s / 1e7) for b in (1, 8, 64) for s in (16, 256, 4096)],
        ),
    }
    for name, (header, rows) in tables.items():
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([header, *rows])
