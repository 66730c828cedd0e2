"""Flags of `run` and `replay`: routing, admission, and the queue at the gateway."""

from __future__ import annotations

from blis_py.cli.flag import Flag

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
