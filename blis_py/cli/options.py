"""The flags of `run` and `replay`, one row each, with those of `cluster_options` and `traffic_options`."""

from __future__ import annotations

from blis_py.cli.cluster_options import CLUSTER, GATEWAY
from blis_py.cli.flag import Flag, Group
from blis_py.cli.traffic_options import TRACE

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
        "--frontend-ms",
        str,
        "frontend_ms",
        "Delay in front of the engine, behind it, and its growth with each sequence.",
        metavar="MS,MS,MS",
    ),
    Flag("--mask-row-us", float, "latency.mask_row_us", "Structured outputs: host time of a row's mask."),
    Flag("--mask-step-us", float, "latency.mask_step_us", "The same of a step that has such rows."),
    Flag("--scan-us", float, "latency.scan_us", "With lpm: host time to look up one waiting request."),
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
RUN = (
    Flag("--config", str, "", "Configuration (YAML); flags override it.", metavar="FILE"),
    Flag("--set", list[str], "", "Any setting: a.b.c=value (repeatable).", metavar="KEY=VALUE"),
    Flag("--seed", int, "seed", "Seed of everything random. Default 42."),
    Flag("--horizon", str, "horizon", "When to stop: 60s, 10m, or µs. By default, when all is done."),
    Flag("--drain", bool, "drain", "Go on after a workload spec's horizon until all is done."),
    Flag("--intervals", int, "", "Rerun N times, with other seeds and coefficients: 90 % intervals."),
    Flag("--cross-check", bool, "", "The same run under every latency model that applies, a row each."),
    Flag("--no-cross-check", bool, "", "Nor the first requests, which warns where two models disagree."),
    Flag("--slo", list[str], "slo", "Targets: ttft.p99=500ms.", metavar="TARGET", many=True),
    Flag(
        "--goodput",
        list[str],
        "goodput",
        "What a good request meets: ttft:500 tpot:50 (ms).",
        metavar="TARGET",
        many=True,
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
