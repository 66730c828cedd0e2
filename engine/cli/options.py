"""The flags of `blis engine`, and the configuration they make."""

from __future__ import annotations

import sys
from typing import Any

from blis_py.cli.flag import Flag, Flags
from engine.config import EngineConfig

MODEL = (
    Flag("--model", str, "model", "Checkpoint folder, config.json, or bundled model.", metavar="PATH|NAME"),
    Flag("--tokenizer", str, "tokenizer", "Folder with a tokenizer.json. Default the model's."),
    Flag("--load-format", str, "load_format", "safetensors or dummy. Default safetensors."),
    Flag("--device", str, "device", "cuda, cpu or auto. Default auto."),
    Flag("--dtype", str, "dtype", "bfloat16, float16, float32 or auto. Default auto."),
    Flag("--seed", int, "seed", "Of dummy weights, prompts and samples. Default 0."),
    Flag(
        "--clock", str, "clock", "wall, cpu (time of the engine's thread), or steady: that, at an even pace."
    ),
    Flag("--yardstick", str, "yardstick_us", "With --clock steady: its pace, two times in µs or a profile."),
)
MEMORY = (
    Flag("--max-model-len", int, "max_model_len", "Longest sequence. Default what fits."),
    Flag("--gpu-memory-utilization", float, "gpu_memory_utilization", "Share of the GPU. Default 0.9."),
    Flag(
        "--kv-cache-memory",
        int,
        "kv_cache_memory_bytes",
        "Bytes for the KV cache.",
        ("--kv-cache-memory-bytes",),
    ),
    Flag("--num-kv-blocks", int, "num_kv_blocks", "Pages of the KV cache.", ("--num-gpu-blocks-override",)),
    Flag("--block-size", int, "block_size", "Tokens per page, 16 to 256. Default 16."),
)
SCHEDULER = (
    Flag("--max-num-seqs", int, "max_num_seqs", "Most running requests. Default 256."),
    Flag("--max-num-batched-tokens", int, "max_num_batched_tokens", "Tokens per step. Default 2048."),
    Flag(
        "--long-prefill-token-threshold",
        int,
        "long_prefill_token_threshold",
        "Longest prefill chunk; 0 = no limit. Default 0.",
    ),
    Flag(
        "--scheduler",
        str,
        "scheduler",
        "fcfs, priority-fcfs, sjf, lpm, hrrn, dfs-weight. Default fcfs.",
        ("--scheduling-policy",),
    ),
    Flag("--preemption-policy", str, "preemption_policy", "Victim: fcfs or priority. Default fcfs."),
    Flag("--batch-former", str, "batch_former", "running-first or prefill-first. Default running-first."),
    Flag("--prefix-cache", str, "prefix_cache", "hash, radix or none. Default hash."),
    Flag("--radix-eviction-policy", str, "radix_eviction_policy", "Which leaf goes first. Default lru."),
    Flag("--fairness-ms", float, "fairness_ms", "With lpm: who has waited this long goes first."),
    Flag("--fairness-tokens", int, "fairness_tokens", "The same, by prefill tokens since arrival."),
    Flag("--lpm-max-queue", int, "lpm_max_queue", "With lpm: beyond, order of arrival. Default 128."),
    Flag("--no-enable-prefix-caching", bool, "enable_prefix_caching", "Compute every prompt in full."),
    Flag(
        "--async-scheduling",
        bool,
        "async_scheduling",
        "Plan and launch the next step while one runs.",
        ("--overlap",),
    ),
    Flag("--no-async-scheduling", bool, "async_scheduling", "Step by step, the default.", ("--no-overlap",)),
    Flag("--check-relay", bool, "check_relay", "With --async-scheduling: check tokens on the device. Slow."),
    Flag("--enforce-eager", bool, "enforce_eager", "No CUDA graphs."),
)
STEP_LOG = Flag("--step-log", str, "", "Write the step log: .csv, .csv.gz or .parquet.", metavar="FILE")
ENGINE = (("Model", MODEL), ("Memory", MEMORY), ("Scheduler", SCHEDULER))

_FLAGS = (*MODEL, *MEMORY, *SCHEDULER)
_OFF = ("--no-enable-prefix-caching", "--no-async-scheduling")


def engine_config(flags: Flags, **defaults: Any) -> EngineConfig:
    """The configuration that the flags make; `defaults` where a flag is absent."""
    from blis_py.errors import InputError

    settings = dict(defaults)
    both = [name for name in ("--async-scheduling", "--overlap") if name in flags]
    if both and ("--no-async-scheduling" in flags or "--no-overlap" in flags):
        raise InputError("contradicts --no-async-scheduling", key=both[0], fix="give one of the two")
    for flag in _FLAGS:
        for name in (flag.name, *flag.aliases):
            if name in flags:
                settings[flag.key] = _value(flag.name, flags[name])
    if "model" not in settings:
        raise InputError("no model given", key="--model", fix="name a checkpoint folder or a bundled model")
    return EngineConfig(**settings)


def _value(flag: str, given: Any) -> Any:
    if flag == "--yardstick":
        return _yardstick_us(given)
    return given if flag not in _OFF else False


def _yardstick_us(given: str) -> tuple[float, float]:
    """What steps of the yardstick take: two numbers with a comma between, or what they took for a profile."""
    from blis_py.errors import InputError
    from blis_py.latency.fitted_profile import read_meta

    path = None
    try:
        told: Any = [float(number) for number in given.split(",")]
    except ValueError:
        path, meta = read_meta(given, flag="--yardstick")
        told = meta.get("yardstick_us")
    match told:
        case [float() as without_prompts, float() as with_prompts]:
            return without_prompts, with_prompts
    if path is None:
        raise InputError("needs two times", key="--yardstick", value=given, fix="write 5000,20000 for µs")
    fix = "give a profile measured with --clock steady, or two times in microseconds"
    raise InputError("not measured by the steady clock", file=path, key="yardstick_us", fix=fix)


def say(line: str) -> None:
    """A line of talk."""
    print(line, file=sys.stderr, flush=True)
