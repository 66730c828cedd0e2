"""The flags of `run` and `replay`, one row each: what it is called, what it sets, what it means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Flags = dict[str, Any]
"""Flags as given, by name (`--tp`); those not given are absent."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `key` is the configuration key it sets; the empty string where it sets none."""

    name: str
    """Without dashes: no flag, but a word that stands by itself, in the order of the flags."""
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
    Flag(
        "--engine",
        str,
        "engine",
        "Whose engine: vllm (default), vllm-0.10, vllm-0.15, blis, or a YAML file.",
        metavar="NAME",
    ),
    Flag("--gpu", str, "gpu", "GPU: a bundled name or a YAML file. Default h100.", ("--hardware",)),
    Flag("--tp", int, "tp", "Tensor-parallel degree. Default 1.", ("--tensor-parallel-size", "-tp")),
    Flag(
        "--link-gbps",
        float,
        "link_gbps",
        "GB/s between the GPUs of an instance, each way. Default the GPU's.",
    ),
    Flag("--num-instances", int, "num_instances", "Instances behind the router. Default 1."),
)
SCHEDULER = (
    Flag(
        "--scheduler",
        str,
        "scheduler.policy",
        "fcfs, priority-fcfs, sjf, lpm, hrrn, dfs-weight, reverse-priority. Default fcfs.",
    ),
    Flag(
        "--preemption-policy", str, "scheduler.preemption_policy", "Victim: fcfs or priority. Default fcfs."
    ),
    Flag(
        "--batch-former",
        str,
        "scheduler.batch_former",
        "running-first or prefill-first. Default running-first.",
    ),
    Flag(
        "--max-num-seqs",
        int,
        "scheduler.max_num_seqs",
        "Most running requests per instance. Default: the engine's.",
        ("--max-num-running-reqs",),
    ),
    Flag(
        "--max-num-batched-tokens",
        int,
        "scheduler.max_num_batched_tokens",
        "Tokens per step. Default: the engine's.",
        ("--max-num-scheduled-tokens",),
    ),
    Flag(
        "--long-prefill-token-threshold",
        int,
        "scheduler.long_prefill_token_threshold",
        "Longest prefill chunk; 0 = no limit. Default 0.",
    ),
    Flag(
        "--block-size",
        int,
        "scheduler.block_size",
        "Tokens per KV block. Default 16.",
        ("--block-size-in-tokens",),
    ),
    Flag(
        "--num-kv-blocks",
        int,
        "scheduler.num_kv_blocks",
        "KV blocks, instead of what fits.",
        ("--total-kv-blocks", "--num-gpu-blocks-override"),
    ),
    Flag(
        "--gpu-memory-utilization",
        float,
        "scheduler.gpu_memory_utilization",
        "Share of GPU memory in use. Default 0.9.",
    ),
    Flag("--max-model-len", int, "scheduler.max_model_len", "Longest sequence; 0 = automatic. Default 0."),
    Flag("--enable-prefix-caching", bool, "scheduler.enable_prefix_caching", hidden=True),
    Flag(
        "--no-enable-prefix-caching",
        bool,
        "scheduler.enable_prefix_caching",
        "Compute every prompt in full: --prefix-cache none.",
    ),
    Flag(
        "--prefix-cache",
        str,
        "scheduler.prefix_cache",
        "hash (vLLM), radix (SGLang) or none. Default hash.",
    ),
    Flag(
        "--radix-eviction-policy",
        str,
        "scheduler.radix_eviction_policy",
        "With radix: lru, lfu, fifo, mru, priority, cold-subtree. Default lru.",
    ),
    Flag(
        "--async-scheduling",
        bool,
        "scheduler.async_scheduling",
        "Plan and launch a step while the one before it runs.",
        ("--overlap",),
    ),
    Flag(
        "--no-async-scheduling",
        bool,
        "scheduler.async_scheduling",
        "Steps and their planning take turns: the default.",
        ("--no-overlap", "--disable-overlap-schedule"),
    ),
    Flag(
        "--late-length-stops",
        bool,
        "scheduler.late_length_stops",
        "With asynchronous scheduling, ends by length are learnt late too, as in SGLang.",
    ),
    Flag("--no-late-length-stops", bool, "scheduler.late_length_stops", hidden=True),
    Flag(
        "--fairness-ms",
        float,
        "scheduler.fairness_ms",
        "With lpm, hrrn, dfs-weight: who has waited this long goes first; 0 = fcfs. Default: never.",
    ),
    Flag(
        "--fairness-tokens",
        int,
        "scheduler.fairness_tokens",
        "The same, counted in prefill tokens computed meanwhile. Default: never.",
    ),
    Flag(
        "--lpm-max-queue",
        int,
        "scheduler.lpm_max_queue",
        "With lpm, hrrn, dfs-weight: fcfs when more requests wait. Default 128.",
    ),
    Flag(
        "--in-batch-sharing",
        int,
        "scheduler.in_batch_sharing_tokens",
        "With these: uncached tokens worth waiting for while another computes them; -1 = off. Default 32.",
    ),
)
LATENCY = (
    Flag(
        "--latency-model",
        str,
        "latency.model",
        "trained, trained-physics, roofline, kernel-tables, fitted, linear. Default: the engine's.",
    ),
    Flag("--alpha-coeffs", str, "latency.alpha_coeffs", "Three front-end delays, µs.", metavar="A,A,A"),
    Flag("--beta-coeffs", str, "latency.beta_coeffs", "Coefficients of trained-physics.", metavar="B,B,…"),
    Flag(
        "--kernel-profile", str, "latency.kernel_profile", "Measured kernels of kernel-tables.", metavar="DIR"
    ),
    Flag("--profile", str, "latency.profile", "Measured step times; implies fitted.", metavar="DIR"),
    Flag(
        "--frontend-ms", str, "frontend_ms", "Delay in front of the engine, and behind it.", metavar="MS,MS"
    ),
    Flag("--mask-row-us", float, "latency.mask_row_us", "Structured outputs: host time of a row's mask."),
    Flag("--mask-step-us", float, "latency.mask_step_us", "The same of a step that has such rows."),
)
DLLM = (
    Flag("--dllm-workload", str, "dllm.workload", "Make all requests diffusion requests.", metavar="FILE"),
    Flag("--dllm-algorithm", str, "dllm.algorithm", "Whose step counts of the workload. Default its first."),
    Flag("--dllm-config", str, "dllm.config", "Parameters of the algorithm (YAML).", metavar="FILE"),
    Flag("--dllm-fdfo", bool, "dllm.fdfo", "First done, first out: the default."),
    Flag("--no-dllm-fdfo", bool, "dllm.fdfo", "A batch runs until all its blocks are final."),
    Flag("--dllm-in-place-reuse", bool, "dllm.in_place_reuse", hidden=True),
    Flag(
        "--no-dllm-in-place-reuse",
        bool,
        "dllm.in_place_reuse",
        "An unfinished block gives up slot and KV blocks after every batch.",
    ),
    Flag("--dllm-re-loop", bool, "dllm.re_loop", hidden=True),
    Flag("--no-dllm-re-loop", bool, "dllm.re_loop", "Ask the scheduler after every round."),
    Flag("--dllm-schedule-us", float, "dllm.schedule_us", "Cost of asking the scheduler, µs. Default 0."),
    Flag("--dllm-allocator-us", float, "dllm.allocator_call_us", "Cost of an allocator call, µs. Default 0."),
)
CLUSTER = (
    Flag(
        "--routing-policy",
        str,
        "routing.policy",
        "round-robin, least-loaded, random, power-of-two, weighted, session-affinity, always-busiest. "
        "Default round-robin.",
    ),
    Flag(
        "--routing-scorers",
        str,
        "routing.scorers",
        "With weighted: scorers and weights. Default precise-prefix-cache:2,queue-depth:1,kv-utilization:1.",
        metavar="NAME:W,…",
    ),
    Flag("--routing-latency", int, "routing.latency_us", "Router delay, µs. Default 0."),
    Flag(
        "--admission-policy",
        str,
        "admission.policy",
        "always-admit, reject-all, token-bucket, tier-shed, gaie-legacy. Default always-admit.",
    ),
    Flag(
        "--token-bucket-capacity",
        float,
        "admission.token_bucket_capacity",
        "With token-bucket: prompt tokens that may come at once. Default 10000.",
    ),
    Flag(
        "--token-bucket-refill-rate",
        float,
        "admission.token_bucket_refill_rate",
        "With token-bucket: prompt tokens per second. Default 1000.",
    ),
    Flag(
        "--tier-shed-threshold",
        float,
        "admission.tier_shed_threshold",
        "With tier-shed: load of an instance above which classes are shed. Default 0.",
    ),
    Flag(
        "--tier-shed-min-priority",
        int,
        "admission.tier_shed_min_priority",
        "With tier-shed: the least priority that is let in then. Default 0.",
    ),
    Flag(
        "--gaie-qd-threshold",
        float,
        "admission.gaie_qd_threshold",
        "With gaie-legacy: waiting requests of a saturated instance. Default 5.",
    ),
    Flag(
        "--gaie-kv-threshold",
        float,
        "admission.gaie_kv_threshold",
        "With gaie-legacy: KV use of a saturated instance. Default 0.8.",
    ),
    Flag(
        "--tenant-budgets",
        str,
        "admission.tenant_budgets",
        "Shares of all request slots beyond which a tenant's sheddable requests are rejected.",
        metavar="NAME=S,…",
    ),
    Flag("--admission-latency", int, "admission.latency_us", "Admission delay, µs. Default 0."),
    Flag(
        "--snapshot-refresh-interval",
        int,
        "routing.snapshot_refresh_interval_us",
        "Age of what the router knows, µs; 0 = live. Default 50000.",
    ),
    Flag(
        "--cache-signal-delay",
        int,
        "routing.cache_signal_delay_us",
        "Age of what it knows of prefix caches, µs; 0 = live. Default 50000.",
    ),
    Flag("--any-model", bool, "routing.any_model", "Serve requests whatever model they ask for."),
    Flag(
        "--trace-level",
        str,
        "routing.trace_level",
        "decisions: keep what the router knew, in decisions.csv of --out. Default none.",
    ),
    Flag(
        "--counterfactual-k",
        int,
        "routing.counterfactual_k",
        "Candidates to keep of each decision, the best first; 0 = all. Default 0.",
    ),
    Flag(
        "--summarize-trace",
        bool,
        "",
        "With decisions: print what they come to, which is done anyway.",
        hidden=True,
    ),
    Flag("--policy-config", str, "", "BLIS policy bundle.", metavar="FILE"),
)
GATEWAY = (
    Flag("--flow-control", bool, "gateway.flow_control", "Requests wait at the gateway under saturation."),
    Flag(
        "--saturation-detector",
        str,
        "gateway.saturation_detector",
        "When it is saturated: never, utilization, concurrency. Default never.",
    ),
    Flag(
        "--queue-depth-threshold",
        float,
        "gateway.queue_depth_threshold",
        "With utilization: waiting requests of a saturated instance. Default 5.",
    ),
    Flag(
        "--kv-cache-util-threshold",
        float,
        "gateway.kv_cache_util_threshold",
        "With utilization: KV use of a saturated instance. Default 0.8.",
    ),
    Flag(
        "--max-concurrency-per-instance",
        int,
        "gateway.max_concurrency_per_instance",
        "With concurrency: requests in flight at a saturated instance. Default 100.",
    ),
    Flag(
        "--dispatch-order",
        str,
        "gateway.dispatch_order",
        "Who goes first: fifo, priority, slo-deadline, edf. Default fifo.",
    ),
    Flag(
        "--fairness-policy",
        str,
        "gateway.fairness_policy",
        "Whose turn it is among tenants: global-strict, round-robin. Default global-strict.",
    ),
    Flag(
        "--max-gateway-queue-depth",
        int,
        "gateway.max_gateway_queue_depth",
        "Requests that wait, at most; 0 = no limit. Default 0.",
    ),
    Flag(
        "--per-band-capacity",
        int,
        "gateway.per_band_capacity",
        "The same of each priority. Default 0.",
    ),
    Flag(
        "--usage-limit-threshold",
        float,
        "gateway.usage_limit_threshold",
        "Saturation up to which the least urgent are dispatched. Default 1.",
    ),
    Flag(
        "--request-ttl",
        int,
        "gateway.request_ttl_us",
        "Longest wait at the gateway, µs; 0 = no limit. Default 0.",
    ),
    Flag(
        "--queue-shedding",
        bool,
        "gateway.queue_shedding",
        "A full queue sheds the least urgent for who is more urgent.",
    ),
    Flag(
        "--in-flight-eviction",
        bool,
        "gateway.in_flight_eviction",
        "Instances give up sheddable requests for those that wait and are not.",
    ),
    Flag(
        "--dispatch-tick-interval",
        int,
        "gateway.dispatch_tick_interval_us",
        "One request at most per arrival and tick, µs. Default: as many as can be, at once.",
    ),
    Flag(
        "--slo-targets",
        str,
        "gateway.slo_targets_us",
        "With slo-deadline: µs from arrival to dispatch, by SLO class.",
        metavar="CLASS=US,…",
    ),
)
TRACE = (
    Flag(
        "--trace",
        str,
        "workload.trace",
        "Trace: Azure, Mooncake, TraceV2, BurstGPT, ShareGPT, results of vLLM, SGLang, GuideLLM, ...",
        ("--trace-data",),
        "FILE",
    ),
    Flag("--trace-header", str, "workload.trace_header", "Header of a TraceV2 trace.", metavar="FILE"),
    Flag("--trace-format", str, "workload.trace_format", "Format of the trace, by default as it looks."),
    Flag("--columns", str, "workload.columns", "Columns of any table: arrival=ts,input=prompt,output=gen."),
    Flag("--time-unit", str, "workload.time_unit", "Of the arrivals in --columns: s, ms, us, ns. Default s."),
    Flag("--trace-tokenizer", str, "workload.tokenizer", "tokenizer.json, for texts.", metavar="FILE"),
    Flag(
        "--time-scale",
        float,
        "workload.time_scale",
        "Stretch arrival times; 0.5 = twice the rate. Default 1.",
    ),
    Flag("--limit", int, "workload.limit", "Only the first requests of the trace."),
    Flag("--skip-bad-rows", bool, "workload.skip_bad_rows", "Leave bad rows of the trace out, and count."),
    Flag("--session-mode", str, "workload.session_mode", "Turns: closed-loop (after answers) or fixed."),
    Flag("--think-time-dist", str, "workload.think_time_dist", "Of closed-loop: constant:value=800ms, ..."),
    Flag("--slo-shares", str, "workload.slo_shares", "Deal out classes: critical=0.2,standard=0.8."),
)
WORKLOAD = (
    Flag("--workload", str, "workload", "Preset, bundled workload, or spec file.", metavar="NAME|FILE"),
    Flag("--workload-spec", str, "workload.spec", "Workload spec (YAML).", metavar="FILE"),
    Flag("--rate", float, "workload.rate", "Requests per second, default 1. A trace is stretched to it."),
    Flag(
        "--num-requests",
        int,
        "workload.num_requests",
        "Requests to generate (default 100) or to take from a trace.",
        ("--num-prompts",),
    ),
    Flag(
        "--concurrency",
        int,
        "workload.concurrency",
        "Closed loop: requests under way at once, at most; as fast as that allows where no rate is given.",
    ),
    Flag("--think-time-ms", float, "workload.think_time_ms", "Closed loop: pause before the next request."),
    Flag("--arrival", str, "workload.arrival", "poisson, gamma, weibull, constant. Default poisson."),
    Flag("--cv", float, "workload.cv", "Burstiness of gamma and weibull arrivals. Default 1."),
    *(
        Flag(
            f"--{side}-tokens{part}",
            kind,
            f"workload.{side}_tokens{part.replace('-', '_')}",
            f"{text} Default {value}.",
        )
        for side, what in (("prompt", "Prompt"), ("output", "Output"))
        for part, kind, text, value in (
            ("", int, f"{what} length, mean.", 512),
            ("-stdev", int, f"{what} length, standard deviation.", 256),
            ("-min", int, f"{what} length, least.", 2),
            ("-max", int, f"{what} length, most.", 7000),
        )
    ),
    Flag("--prefix-tokens", int, "workload.prefix_tokens", "Shared prefix before every prompt. Default 0."),
    Flag(
        "--eos-share",
        float,
        "workload.eos_share",
        "Share of answers that end unforeseen, with an end of sequence. Default 0.",
    ),
    Flag(
        "--structured-output-ratio",
        float,
        "workload.structured_output_ratio",
        "Share of answers that a grammar constrains. Default: as the trace or spec says, else none.",
        ("--constrained-share",),
    ),
    Flag(
        "--timeout", float, "workload.timeout_s", "Patience of a client, s; negative = endless. Default 300."
    ),
)
RUN = (
    Flag("--config", str, "", "Configuration (YAML); flags override it.", metavar="FILE"),
    Flag("--set", list[str], "", "Any setting: a.b.c=value (repeatable).", metavar="KEY=VALUE"),
    Flag("--seed", int, "seed", "Seed of everything random. Default 42."),
    Flag("--horizon", str, "horizon", "When to stop: 60s, 10m, or µs. By default, when all is done."),
    Flag("--drain", bool, "drain", "Go on after a workload spec's horizon until all is done."),
    Flag("--intervals", int, "", "Rerun N times, with other seeds and coefficients: 90 % intervals."),
    Flag("--cross-check", bool, "", "The same run under every latency model that applies, a row each."),
    Flag("--no-cross-check", bool, "", "Nor the first requests, which warns where two models disagree."),
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
    Flag("--force", bool, "", "Replace the result that is in the folder of --out."),
    Flag("--no-plots", bool, "", "No plots in --out, which saves a second."),
    Flag("--record-itl", bool, "", "In --out, itl.csv with the time of every token."),
    Flag(
        "--format",
        str,
        "",
        "table, json, vllm, blis, blis-text. By default a table on a terminal, else json.",
    ),
    Flag("--metrics-path", str, "", "Metrics with every request, as BLIS writes them.", metavar="FILE"),
    Flag("--trace-output", str, "", "TraceV2 of what was sent: PREFIX.yaml, PREFIX.csv.", metavar="PREFIX"),
    Flag(
        "--fitness-weights", str, "", "One number for the run: throughput:0.5,p99_ttft:0.5.", (), "NAME:W,…"
    ),
    Flag("--results-path", str, "", "Per-request results, as BLIS's replay writes them.", metavar="FILE"),
    Flag("--detectors", str, "", "Saturation after the run: composite,threshold,backlog-drift, or all."),
    Flag("--saturation-config", str, "", "Settings of these detectors (YAML).", metavar="FILE"),
    Flag("--saturation-report", str, "", "What they find at every event (JSON).", metavar="FILE"),
    Flag("--saturation-final-window", str, "", "The end of the run that decides. Default 30s."),
)

Group = tuple[str, tuple[Flag, ...]]
COMMON: tuple[Group, ...] = (
    ("Run", RUN),
    ("Model and hardware", MODEL),
    ("Scheduler", SCHEDULER),
    ("Latency", LATENCY),
    ("Cluster", CLUSTER),
    ("Gateway queue", GATEWAY),
    ("Block diffusion", DLLM),
    ("Trace", TRACE),
)
