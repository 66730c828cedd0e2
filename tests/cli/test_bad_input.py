from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blis_py.cli.verbs import run

Blis = Callable[..., tuple[int, str, str]]

RUN = ("run", "--model", "qwen3-14b")
WEIGHTED = (*RUN, "--routing-policy", "weighted", "--routing-scorers")

BAD_FLAGS = [
    (("run",), "--model: no model given"),
    (("run", "--model", "qwen3-15b"), "qwen3-15b"),
    ((*RUN, "--gpu", "h1000"), "h1000"),
    ((*RUN, "--bogus", "1"), "no such option: --bogus"),
    ((*RUN, "--num-instance", "4"), "did you mean --num-instances?"),
    ((*RUN, "--tp"), "requires an argument"),
    ((*RUN, "4"), "does not belong here (found '4')"),
    ((*RUN, "--tp", "two"), "--tp: must be a whole number (found 'two')"),
    ((*RUN, "--tp", "0"), "--tp: must be at least 1 (found 0)"),
    ((*RUN, "--tp", "3"), "--tp: does not divide"),
    (
        (*RUN, "--hardware", "h100", "--gpu", "a100-80"),
        "--hardware: disagrees with --gpu a100-80 (found 'h100')",
    ),
    ((*RUN, "--num-instances", "0"), "--num-instances: must be at least 1"),
    ((*RUN, "--scheduler", "priority-fcf"), "did you mean 'priority-fcfs'?"),
    ((*RUN, "--preemption-policy", "random"), "--preemption-policy: unknown value"),
    ((*RUN, "--batch-former", "decode-first"), "--batch-former: unknown value"),
    ((*RUN, "--max-num-seqs", "-1"), "--max-num-seqs: must be at least 1"),
    ((*RUN, "--max-num-running-reqs", "0"), "--max-num-running-reqs: must be at least 1"),
    ((*RUN, "--max-num-batched-tokens", "0"), "--max-num-batched-tokens: must be at least 1"),
    ((*RUN, "--long-prefill-token-threshold", "-5"), "--long-prefill-token-threshold: must be at least 0"),
    ((*RUN, "--block-size", "0"), "--block-size: must be at least 1"),
    ((*RUN, "--total-kv-blocks", "0"), "--total-kv-blocks: must be at least 1"),
    ((*RUN, "--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization: must be at most 1"),
    ((*RUN, "--gpu-memory-utilization", "nan"), "--gpu-memory-utilization: must be a finite number"),
    ((*RUN, "--gpu-memory-utilization", "0.1"), "does not fit"),
    ((*RUN, "--max-model-len", "-1"), "--max-model-len: must be at least 1"),
    (
        (*RUN, "--num-kv-blocks", "10", "--max-model-len", "4096"),
        "more than the 160 tokens the KV cache holds",
    ),
    ((*RUN, "--latency-model", "blackbox"), "--latency-model: unknown value (found 'blackbox')"),
    ((*RUN, "--alpha-coeffs", "1,2,3"), "--alpha-coeffs: needs beta-coeffs as well"),
    ((*RUN, "--beta-coeffs", "1,2,3,4,5,6,7"), "--beta-coeffs: needs alpha-coeffs as well"),
    ((*RUN, "--alpha-coeffs", "1,2,x", "--beta-coeffs", "1"), "--alpha-coeffs: must be numbers"),
    ((*RUN, "--alpha-coeffs", "1,2", "--beta-coeffs", "1,2,3,4,5,6,7"), "--alpha-coeffs"),
    (
        (*RUN, "--alpha-coeffs", "1,2,3", "--beta-coeffs", "1e300,1,1,1,1,1,1"),
        "is far too large (found 1e+300)",
    ),
    ((*RUN, "--alpha-coeffs", "1,2,3e10", "--beta-coeffs", "1,1,1,1,1,1,1"), "is far too large"),
    (
        (*RUN, "--latency-model", "roofline", "--alpha-coeffs", "1,2,3", "--beta-coeffs", "1,2,3,4,5,6,7"),
        "belongs to trained-physics, not to roofline",
    ),
    ((*RUN, "--set", "latency.linear.gpu.step=5"), "belongs to the linear model"),
    ((*RUN, "--set", "scheduler.sjf_aging_ms=100"), "belongs to sjf"),
    (
        (*RUN, "--prefix-cache", "tree"),
        "--prefix-cache: unknown value (found 'tree'); one of: hash, none, radix",
    ),
    ((*RUN, "--radix-eviction-policy", "lfu"), "--radix-eviction-policy: belongs to the radix cache"),
    ((*RUN, "--schedule-conservativeness", "2"), "--schedule-conservativeness: is SGLang's"),
    ((*RUN, "--fairness-ms", "5"), "--fairness-ms: belongs to lpm, hrrn, dfs-weight"),
    ((*RUN, "--lpm-max-queue", "5"), "--lpm-max-queue: belongs to lpm, hrrn, dfs-weight"),
    ((*RUN, "--scheduler", "lpm", "--fairness-ms", "-1"), "--fairness-ms: must be at least 0"),
    ((*RUN, "--scheduler", "lpm", "--in-batch-sharing", "0"), "--in-batch-sharing: must be at least 1"),
    ((*RUN, "--scheduler", "lpm", "--prefix-cache", "none"), "--scheduler: lpm orders by the prefix cache"),
    (
        (*RUN, "--scheduler", "lpm", "--no-enable-prefix-caching"),
        "--scheduler: lpm orders by the prefix cache",
    ),
    ((*RUN, "--scheduler", "dfs-weight"), "--scheduler: dfs-weight walks the radix tree"),
    (
        (*RUN, "--prefix-cache", "radix", "--no-enable-prefix-caching"),
        "--prefix-cache: contradicts enable_prefix_caching: false",
    ),
    (
        (*RUN, "--prefix-cache", "none", "--enable-prefix-caching"),
        "--enable-prefix-caching: contradicts prefix_cache: none",
    ),
    ((*RUN, "--routing-policy", "wieghted"), "--routing-policy: unknown value (found 'wieghted'); did you"),
    ((*WEIGHTED, "queue-dept:1"), "--routing-scorers: unknown scorer (found 'queue-dept'); did you mean"),
    ((*WEIGHTED, "queue-depth"), "--routing-scorers: must give each scorer once with its weight"),
    ((*WEIGHTED, "queue-depth:1,queue-depth:2"), "--routing-scorers: must give each scorer once"),
    ((*WEIGHTED, "queue-depth:0"), "--routing-scorers: a weight must be greater than 0"),
    ((*WEIGHTED, "queue-depth:nan"), "--routing-scorers: a weight must be greater than 0"),
    ((*RUN, "--trace-level", "all"), "--trace-level: unknown value"),
    ((*RUN, "--counterfactual-k", "2"), "--counterfactual-k: means decisions that are kept"),
    ((*RUN, "--summarize-trace"), "--summarize-trace: needs decisions that are kept"),
    ((*RUN, "--rate", "0"), "--rate: must be greater than 0"),
    ((*RUN, "--rate", "inf"), "--rate: must be a finite number"),
    ((*RUN, "--num-requests", "0"), "--num-requests: must be at least 1"),
    ((*RUN, "--horizon", "soon"), "--horizon: must be a positive duration"),
    ((*RUN, "--horizon", "0"), "--horizon: must be a positive duration"),
    ((*RUN, "--horizon", "10 parsecs"), "--horizon: must be a positive duration"),
    ((*RUN, "--timeout", "0"), "--timeout: must not be 0"),
    ((*RUN, "--arrival", "weekly"), "--arrival: unknown value"),
    ((*RUN, "--prompt-tokens-min", "100", "--prompt-tokens-max", "10"), "--prompt-tokens-min: is more than"),
    ((*RUN, "--slo", "ttft"), "--slo: not an SLO"),
    ((*RUN, "--goodput", "speed:5"), "--goodput: not a goodput target"),
    ((*RUN, "--slo-ttft", "fast"), "--slo-ttft: not CLASS=DURATION"),
    ((*RUN, "--format", "xml"), "--format: unknown format"),
    ((*RUN, "--force"), "--force: needs a folder"),
    ((*RUN, "--metrics-path", "/nowhere/at/all.json"), "--metrics-path: no such folder"),
    ((*RUN, "--set", "scheduler.max_num_seqs"), "must look like a.b.c=value"),
    ((*RUN, "--set", "scheduler.max_nun_seqs=5"), "did you mean 'max_num_seqs'?"),
    ((*RUN, "--set", "scheduler=[1"), "not valid YAML"),
    ((*RUN, "--set", "scheduler=5"), "must be a section"),
    ((*RUN, "--set", "model.name=x"), "model has no keys of its own"),
    ((*RUN, "--tp", "1", "--set", "tp=2"), "--set tp: disagrees with --tp 1"),
    ((*RUN, "--workload", "chatbots"), "did you mean 'chatbot'?"),
    ((*RUN, "--workload", "chatbot", "--prompt-tokens", "5"), "--prompt-tokens: has no effect on a preset"),
    ((*RUN, "--workload", "chatbot", "--trace", "x.csv"), "cannot be combined with"),
    ((*RUN, "--trace", "x.csv", "--rate", "5", "--time-scale", "2"), "--rate: cannot be combined with"),
    ((*RUN, "--trace", "x.csv", "--timeout", "300"), "--timeout: has no effect on a trace"),
    ((*RUN, "--limit", "5"), "--limit: needs a trace"),
    ((*RUN, "--time-scale", "-1", "--trace", "x.csv"), "--time-scale: must be greater than 0"),
    ((*RUN, "--slo-shares", "critical", "--trace", "x.csv"), "--slo-shares: must give each class once"),
    ((*RUN, "--trace", "no-such-file.csv"), "no-such-file.csv: No such file"),
    ((*RUN, "--workload-spec", "no-such-file.yaml"), "no-such-file.yaml"),
    ((*RUN, "--config", "no-such-file.yaml"), "no-such-file.yaml: No such file"),
    ((*RUN, "--policy-config", "no-such-file.yaml"), "no-such-file.yaml: No such file"),
    (("replay", "--model", "qwen3-14b"), "--trace: no trace given"),
    (
        (*RUN, "--trace", "x.csv", "--trace-format", "azure", "--columns", "arrival=a,input=b,output=c"),
        "--trace-format: cannot be combined with columns",
    ),
    (("replay", "--model", "qwen3-14b", "--trace", "x.csv", "--cv", "4"), "use `blis run`"),
    (("replay", "--model", "qwen3-14b", "--trace-header", "x.yaml"), "--trace-header: needs a trace"),
    (("sweep", *RUN[1:], "--vary", "seed=1,2", "--cache", ""), "--cache: must not be empty"),
    (("plan", *RUN[1:], "--slo", "ttft.p99=1s", "--cache", ""), "--cache: must not be empty"),
    (("sweep", *RUN[1:], "--vary", "seed=1,2", "--workers", "1000000"), "--workers: must be at most"),
    (("runn",), "no such command 'runn'"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), BAD_FLAGS, ids=lambda part: None if isinstance(part, str) else " ".join(part)
)
def test_bad_flags_give_one_line_and_exit_code_2(
    blis: Blis, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = blis(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_a_run_beyond_the_clock_prints_no_numbers(blis: Blis) -> None:
    code, out, err = blis(
        *RUN, "--timeout", "-1", "--alpha-coeffs", "1,2,3", "--beta-coeffs", "1,1,1e12,1,1,1,1"
    )
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: the run goes on for longer than a century")


NOT_YET = [
    ("--kv-cpu-blocks", "100"),
    ("--lora-config", "lora.yaml"),
    ("--dp", "2"),
    ("--defaults-filepath", "defaults.yaml"),
]


APART = [
    ("--prefill-instances 2", "--prefill-instances: no instance serves decode; give --decode-instances"),
    ("--decode-instances 2", "--decode-instances: no instance serves prefill; give --prefill-instances"),
    ("--pd-decider always", "--pd-decider: has no effect: prefill and decode are not apart"),
    ("--decode-tp 2", "--decode-tp: has no effect: prefill and decode are not apart"),
    (
        "--prefill-instances 1 --decode-instances 1 --num-instances 3",
        "--num-instances: contradicts the pools",
    ),
    ("--prefill-instances 1 --decode-instances 1 --pd-link x", "--pd-link: unknown link"),
    ("--prefill-instances 1 --decode-instances 1 --handoff x", "disaggregation.handoff: unknown hand-over"),
    ("--prefill-instances 1 --decode-instances 1 --pd-decider x", "disaggregation.decider: unknown decider"),
    (
        "--prefill-instances 1 --decode-instances 1 --kv-lease-duration 1 --handoff sglang",
        "disaggregation.lease_s: has no effect with sglang",
    ),
]


@pytest.mark.parametrize(("flags", "message"), APART)
def test_contradictions_of_prefill_and_decode_apart_are_named(blis: Blis, flags: str, message: str) -> None:
    code, out, err = blis(*RUN, *flags.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


@pytest.mark.parametrize("flag", NOT_YET, ids=" ".join)
def test_a_blis_flag_without_its_feature_is_refused_and_never_ignored(
    blis: Blis, flag: tuple[str, ...]
) -> None:
    code, out, err = blis(*RUN, *flag)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{flag[0]}: is a BLIS flag that blis-py does not have yet" in err


PEER_FLAGS = """
admission-latency admission-policy alpha-coeffs beta-coeffs block-size-in-tokens cache-signal-delay
concurrency counterfactual-k decode-hardware decode-instances decode-latency-model decode-max-model-len
decode-routing-scorers decode-tp defaults-filepath detectors dispatch-order dispatch-tick-interval dp
enable-expert-parallel encode-decider encode-instances fairness-policy fitness-weights flow-control
gpu-memory-utilization hardware hardware-config horizon in-flight-eviction kv-cache-util-threshold
kv-cpu-blocks kv-offload-config kv-offload-threshold kv-transfer-bandwidth kv-transfer-base-latency
latency-model lazy-generation log long-prefill-token-threshold lora-adapter-capacity lora-config
lora-footprint-bytes-per-rank lora-load-bandwidth-bytes-us lora-load-base-latency-us lora-scorer-weight
max-concurrency max-gateway-queue-depth max-model-len max-num-batched-tokens max-num-seqs metrics-path
model model-autoscaler-interval-us model-config-folder moe-comm-backend num-instances num-requests
output-tokens output-tokens-max output-tokens-min output-tokens-stdev pd-decider pd-prefix-threshold
pd-transfer-bandwidth pd-transfer-base-latency pd-transfer-contention per-band-capacity policy-config
preemption-policy prefill-decode-instances prefill-hardware prefill-instances prefill-latency-model
prefill-max-model-len prefill-routing-scorers prefill-tp prefix-tokens prompt-tokens prompt-tokens-max
prompt-tokens-min prompt-tokens-stdev queue-depth-threshold queue-shedding rate request-ttl
routing-latency routing-policy routing-scorers saturation-config saturation-detector
saturation-final-window saturation-report scheduler seed slo-e2e slo-itl slo-targets slo-ttft
snapshot-refresh-interval summarize-trace think-time-ms timeout token-bucket-capacity
token-bucket-refill-rate total-kv-blocks tp trace-level trace-output usage-limit-threshold workload
workload-spec trace-header trace-data results-path max-num-running-reqs max-num-scheduled-tokens
"""


def test_every_flag_of_blis_run_is_known() -> None:
    known = {spelling for _, flags in run.GROUPS for flag in flags for spelling in (flag.name, *flag.aliases)}
    assert {f"--{name}" for name in PEER_FLAGS.split()} - known == set()


BAD_CONFIGS = [
    ("modle: qwen3-14b", "modle: unknown key (found 'qwen3-14b'); did you mean 'model'?"),
    ("scheduler:\n  max_seqs: 5", "scheduler.max_seqs: unknown key"),
    ("scheduler: fcfs", "scheduler: must be a section with keys policy"),
    ("tp: two", "tp: must be a whole number"),
    ("tp: true", "tp: must be a whole number"),
    ("tp: 1.0", "tp: must be a whole number"),
    ("tp: 1\ntp: 2", "'tp' is given twice"),
    ("tp: [", "not valid YAML"),
    ("- tp", "must be a mapping"),
    ("num_instances: 0", "num_instances: must be at least 1"),
    ("scheduler: {enable_prefix_caching: 1}", "scheduler.enable_prefix_caching: must be true or false"),
    ("slo: ttft.p99=1s", "slo: must be a list"),
    ("admission: {slo_priorities: {critical: high}}", "admission.slo_priorities: must be a whole number"),
    ("latency: {alpha_coeffs: [1, 2, x]}", "latency.alpha_coeffs: must be a number"),
    ("routing: {latency_us: -1}", "routing.latency_us: must be at least 0"),
]


@pytest.mark.parametrize(("text", "message"), BAD_CONFIGS, ids=lambda text: text.replace("\n", " "))
def test_bad_configs_name_file_and_key(blis: Blis, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    code, out, err = blis("run", "--config", path)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(path) in err
    assert message in err


BAD_BUNDLES = [
    ("shceduler: fcfs", "shceduler: unknown key; did you mean 'scheduler'?"),
    ("admission: {slo_targets: {batch: 0}}", "admission.slo_targets: must be a time above 0"),
    ("admission: {policy: token-buckets}", "admission.policy: unknown value"),
    ("admission: {policy: token-bucket, token_bucket_capacity: 0}", "must be greater than 0"),
    ("admission: {gaie_kv_threshold: 1.5}", "admission.gaie_kv_threshold: must be at most 1"),
    ("tenant_budgets: {acme: 1.5}", "tenant_budgets: must be from 0 to 1"),
    ("routing: {scorers: {queue-depth: 1}}", "routing.scorers: must be a list"),
    ("routing: {scorers: [{name: queue-depth}]}", "routing.scorers: must be a name and a weight"),
    ("routing: {scorers: [{name: q, weight: 1}, {name: q, weight: 1}]}", "the scorer is given twice"),
    ("routing: {policy: weighted, scorers: [{name: q, weight: 1}]}", "routing.scorers: unknown scorer"),
    ("routing: {scorers: [{name: [q], weight: 1}]}", "routing.scorers: must be the name of a scorer"),
    ("routing: {scorers: [{name: {q: 1}, weight: 1}]}", "routing.scorers: must be the name of a scorer"),
    ("autoscaler: {interval_us: 5}", "autoscaler: a setting of BLIS that is not supported yet"),
    ("preemption: fcfs", "preemption: must be a section"),
    ("admission: {slo_priorities: {critical: 101}}", "priority out of range"),
]


@pytest.mark.parametrize(("text", "message"), BAD_BUNDLES, ids=lambda text: text)
def test_bad_policy_bundles_name_the_key(blis: Blis, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bundle.yaml"
    path.write_text(text)
    code, out, err = blis(*RUN, "--policy-config", path)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
