"""The flags of `run` and `replay`, one row each: what it is called, what it sets, what it means."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

Flags = dict[str, Any]
"""Flags as given, by name (`--tp`); those not given are absent."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `key` is the configuration key it sets; the empty string where it sets none."""

    name: str
    kind: Any
    key: str
    help: str = ""
    aliases: tuple[str, ...] = ()
    """Other spellings, hidden from the help."""
    metavar: str | None = None
    hidden: bool = False


MODEL = (
    Flag("--model", str, "model", "Model: a bundled name or its HuggingFace spelling."),
    Flag(
        "--model-config",
        str,
        "model_config",
        "HuggingFace config.json of any other model.",
        ("--model-config-folder",),
        "FILE",
    ),
    Flag("--gpu", str, "gpu", "GPU: a bundled name or a YAML file.  [h100]", ("--hardware",)),
    Flag("--tp", int, "tp", "Tensor-parallel degree.  [1]"),
    Flag("--num-instances", int, "num_instances", "Instances behind the router.  [1]"),
)
SCHEDULER = (
    Flag("--scheduler", str, "scheduler.policy", "fcfs, priority-fcfs, sjf, reverse-priority.  [fcfs]"),
    Flag("--preemption-policy", str, "scheduler.preemption_policy", "Victim: fcfs or priority.  [fcfs]"),
    Flag("--batch-former", str, "scheduler.batch_former", "running-first or prefill-first.  [running-first]"),
    Flag(
        "--max-num-seqs",
        int,
        "scheduler.max_num_seqs",
        "Most running requests per instance.  [256]",
        ("--max-num-running-reqs",),
    ),
    Flag(
        "--max-num-batched-tokens",
        int,
        "scheduler.max_num_batched_tokens",
        "Tokens per step.  [2048]",
        ("--max-num-scheduled-tokens",),
    ),
    Flag(
        "--long-prefill-token-threshold",
        int,
        "scheduler.long_prefill_token_threshold",
        "Longest prefill chunk; 0 = no limit.  [0]",
    ),
    Flag(
        "--block-size", int, "scheduler.block_size", "Tokens per KV block.  [16]", ("--block-size-in-tokens",)
    ),
    Flag(
        "--num-kv-blocks",
        int,
        "scheduler.num_kv_blocks",
        "KV blocks, instead of what fits.",
        ("--total-kv-blocks",),
    ),
    Flag(
        "--gpu-memory-utilization",
        float,
        "scheduler.gpu_memory_utilization",
        "Share of GPU memory in use.  [0.9]",
    ),
    Flag("--max-model-len", int, "scheduler.max_model_len", "Longest sequence; 0 = automatic.  [0]"),
    Flag(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        bool,
        "scheduler.enable_prefix_caching",
        "Share KV blocks of equal prefixes.  [on]",
    ),
)
LATENCY = (
    Flag("--latency-model", str, "latency.model", "trained-physics, roofline, linear.  [trained-physics]"),
    Flag("--alpha-coeffs", str, "latency.alpha_coeffs", "Three front-end delays, µs.", metavar="A,A,A"),
    Flag("--beta-coeffs", str, "latency.beta_coeffs", "Coefficients of trained-physics.", metavar="B,B,…"),
)
CLUSTER = (
    Flag("--routing-policy", str, "routing.policy", "round-robin or least-loaded.  [round-robin]"),
    Flag("--routing-latency", int, "routing.latency_us", "Router delay, µs.  [0]"),
    Flag("--admission-latency", int, "admission.latency_us", "Admission delay, µs.  [0]"),
    Flag(
        "--snapshot-refresh-interval",
        int,
        "routing.snapshot_refresh_interval_us",
        "Age of what the router knows, µs; 0 = live.  [50000]",
    ),
    Flag("--policy-config", str, "", "BLIS policy bundle.", metavar="FILE"),
)
TRACE = (
    Flag(
        "--trace",
        str,
        "workload.trace",
        "Trace: Azure CSV, Mooncake JSONL, TraceV2.",
        ("--trace-data",),
        "FILE",
    ),
    Flag("--trace-header", str, "workload.trace_header", "Header of a TraceV2 trace.", metavar="FILE"),
    Flag("--time-scale", float, "workload.time_scale", "Stretch arrival times; 0.5 = twice the rate.  [1]"),
    Flag("--limit", int, "workload.limit", "Only the first requests of the trace."),
    Flag("--slo-shares", str, "workload.slo_shares", "Deal out classes: critical=0.2,standard=0.8."),
)
WORKLOAD = (
    Flag("--workload", str, "workload", "Preset, bundled workload, or spec file.", metavar="NAME|FILE"),
    Flag("--workload-spec", str, "workload.spec", "Workload spec (YAML).", metavar="FILE"),
    Flag("--rate", float, "workload.rate", "Requests per second.  [1]"),
    Flag("--num-requests", int, "workload.num_requests", "Requests to generate.  [100]"),
    Flag("--arrival", str, "workload.arrival", "poisson, gamma, weibull, constant.  [poisson]"),
    Flag("--cv", float, "workload.cv", "Burstiness of gamma and weibull arrivals.  [1]"),
    *(
        Flag(
            f"--{side}-tokens{part}",
            kind,
            f"workload.{side}_tokens{part.replace('-', '_')}",
            f"{text}  [{value}]",
        )
        for side, what in (("prompt", "Prompt"), ("output", "Output"))
        for part, kind, text, value in (
            ("", int, f"{what} length, mean.", 512),
            ("-stdev", int, f"{what} length, standard deviation.", 256),
            ("-min", int, f"{what} length, least.", 2),
            ("-max", int, f"{what} length, most.", 7000),
        )
    ),
    Flag("--prefix-tokens", int, "workload.prefix_tokens", "Shared prefix before every prompt.  [0]"),
    Flag("--timeout", float, "workload.timeout_s", "Patience of a client, s; negative = endless.  [300]"),
)
RUN = (
    Flag("--config", str, "", "Configuration (YAML); flags override it.", metavar="FILE"),
    Flag("--set", list[str], "", "Any setting: a.b.c=value (repeatable).", metavar="KEY=VALUE"),
    Flag("--seed", int, "seed", "Seed of everything random.  [42]"),
    Flag("--horizon", str, "horizon", "When to stop: 60s, 10m, or µs.  [when all is done]"),
    Flag("--slo", list[str], "slo", "Target: ttft.p99=500ms (repeatable).", metavar="TARGET"),
    Flag(
        "--goodput",
        list[str],
        "goodput",
        "What a good request meets: ttft:500 tpot:50 (ms).",
        metavar="TARGET",
    ),
    *(
        Flag(
            f"--slo-{metric}",
            str,
            f"goodput_by_class.{metric}",
            f"{metric.upper()} limit by SLO class.",
            (),
            "C=T,…",
        )
        for metric in ("ttft", "itl", "e2e")
    ),
)
OUTPUT = (
    Flag("--out", str, "", "Folder for config, summary, requests, steps, plots, trace.", metavar="DIR"),
    Flag("--force", bool, "", "Write into a folder that is not empty."),
    Flag("--plots/--no-plots", bool, "", "Plots in --out.  [on]"),
    Flag("--format", str, "", "table, json, vllm, blis.  [table on a terminal, else json]"),
    Flag("--metrics-path", str, "", "Metrics with every request, as BLIS writes them.", metavar="FILE"),
    Flag("--results-path", str, "", "Per-request results, as BLIS's replay writes them.", metavar="FILE"),
)

Group = tuple[str, tuple[Flag, ...]]
COMMON: tuple[Group, ...] = (
    ("Run", RUN),
    ("Model and hardware", MODEL),
    ("Scheduler", SCHEDULER),
    ("Latency", LATENCY),
    ("Cluster", CLUSTER),
    ("Trace", TRACE),
)


def takes(*groups: Group) -> Callable[[Callable[[Flags], None]], Callable[..., None]]:
    """Makes a typer command of a function that wants its flags as one dictionary."""

    def decorate(command: Callable[[Flags], None]) -> Callable[..., None]:
        parameters, names = [], {}
        for panel, flags in groups:
            for flag in flags:
                for spelling in (flag.name, *flag.aliases):
                    parameter = spelling.partition("/")[0].lstrip("-").replace("-", "_")
                    hidden = flag.hidden or spelling != flag.name
                    names[parameter] = spelling.partition("/")[0]
                    parameters.append(_parameter(parameter, spelling, flag, panel, hidden))

        def call(**values: Any) -> None:
            command({names[key]: value for key, value in values.items() if value not in (None, [])})

        call.__name__, call.__doc__ = command.__name__, command.__doc__
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return call

    return decorate


def _parameter(name: str, spelling: str, flag: Flag, panel: str, hidden: bool) -> inspect.Parameter:
    option = typer.Option(
        spelling,
        help=flag.help,
        metavar=flag.metavar,
        hidden=hidden,
        rich_help_panel=panel,
        show_default=False,
    )
    annotation = Annotated[flag.kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
