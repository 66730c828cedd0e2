"""Flags of `run` and `replay`: where requests come from."""

from __future__ import annotations

from blis_py.cli.flag import Flag

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
    Flag("--client-timeout", float, "workload.client_timeout_s", "Patience of the trace's clients, s."),
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
