from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from blis_py import api
from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs.run import GROUPS
from blis_py.config.models import RunConfig

Blis = Callable[..., tuple[int, str, str]]

ALIASES = [
    (("--hardware", "a100-80"), ("--gpu", "a100-80")),
    (("--total-kv-blocks", "500"), ("--num-kv-blocks", "500")),
    (("--block-size-in-tokens", "32"), ("--block-size", "32")),
    (("--max-num-running-reqs", "7"), ("--max-num-seqs", "7")),
    (("--max-num-scheduled-tokens", "512"), ("--max-num-batched-tokens", "512")),
    (("--model-config-folder", "shapes"), ("--model-config", "shapes")),
    (("--trace-data", "t.csv"), ("--trace", "t.csv")),
    (("--max-model-len", "0"), ()),
    (("--horizon", "9223372036854775807"), ()),
    (("--enable-prefix-caching",), ()),
    (("--tp", "1"), ()),
    (("--set", "tp=2"), ("--tp", "2")),
    (("--set", "scheduler.max_num_seqs=9"), ("--max-num-seqs", "9")),
    (("--set", "scheduler={max_num_seqs: 9}"), ("--max-num-seqs", "9")),
    (("--set", "slo=[ttft.p99=1s]"), ("--slo", "ttft.p99=1s")),
    (("--slo", "ttft.p99=1s,e2e.mean=2s"), ("--slo", "ttft.p99=1s", "--slo", "e2e.mean=2s")),
    (("--gpu", "h200", "--hardware", "h200"), ("--gpu", "h200")),
    (("--workload", "./spec.yaml"), ("--workload-spec", "spec.yaml")),
]


def given(*arguments: str) -> RunConfig:
    """The configuration of `blis run --model qwen3-14b ARGUMENTS`, which is not run."""
    from unittest.mock import patch

    from blis_py.cli import main

    seen: list[RunConfig] = []
    with patch("blis_py.cli.verbs.run.execute", lambda flags: seen.append(configure(flags))):
        assert main(["run", "--model", "qwen3-14b", *arguments]) == 0
    return seen[0]


@pytest.mark.parametrize(("alias", "canonical"), ALIASES, ids=lambda flags: " ".join(flags) or "nothing")
def test_both_spellings_mean_the_same(alias: tuple[str, ...], canonical: tuple[str, ...]) -> None:
    assert given(*alias) == given(*canonical)


VALUES = [
    (("--no-enable-prefix-caching",), "scheduler.enable_prefix_caching", False),
    (("--scheduler", "sjf"), "scheduler.policy", "sjf"),
    (("--prefix-cache", "radix"), "scheduler.prefix_cache", "radix"),
    (("--set", "scheduler.prefix_cache=none"), "scheduler.prefix_cache", "none"),
    (
        ("--prefix-cache", "radix", "--radix-eviction-policy", "cold-subtree"),
        "scheduler.radix_eviction_policy",
        "cold-subtree",
    ),
    (("--scheduler", "lpm", "--fairness-ms", "500"), "scheduler.fairness_ms", 500.0),
    (("--scheduler", "hrrn", "--fairness-tokens", "0"), "scheduler.fairness_tokens", 0),
    (("--scheduler", "lpm", "--lpm-max-queue", "64"), "scheduler.lpm_max_queue", 64),
    (("--scheduler", "lpm", "--in-batch-sharing", "128"), "scheduler.in_batch_sharing_tokens", 128),
    (("--scheduler", "lpm", "--in-batch-sharing", "-1"), "scheduler.in_batch_sharing_tokens", None),
    (("--timeout", "-1"), "workload.timeout_s", None),
    (("--timeout", "12"), "workload.timeout_s", 12.0),
    (("--alpha-coeffs", "1,2,3", "--beta-coeffs", "1,2,3,4,5,6,7"), "latency.alpha_coeffs", (1.0, 2.0, 3.0)),
    (
        ("--set", "latency.model=linear", "--set", "latency.linear.gpu.step=1e6"),
        "latency.linear",
        {"gpu": {"step": 1e6}},
    ),
    (
        ("--trace", "t.csv", "--slo-shares", "critical=0.2, standard=0.8"),
        "workload.slo_shares",
        {"critical": 0.2, "standard": 0.8},
    ),
    (("--slo-ttft", "critical=100ms"), "goodput_by_class", {"ttft": "critical=100ms"}),
    (("--goodput", "ttft:500", "tpot:50"), "goodput", ("ttft:500", "tpot:50")),
    (("--goodput", "ttft:500", "--goodput", "tpot:50"), "goodput", ("ttft:500", "tpot:50")),
    (("--routing-latency", "250"), "routing.latency_us", 250),
    (("--admission-latency", "50"), "admission.latency_us", 50),
    (("--admission-policy", "tier-shed"), "admission.policy", "tier-shed"),
    (("--flow-control", "--request-ttl", "5000"), "gateway.request_ttl_us", 5000),
    (("--flow-control", "--in-flight-eviction"), "gateway.in_flight_eviction", True),
    (
        ("--admission-policy", "token-bucket", "--token-bucket-capacity", "50"),
        "admission.token_bucket_capacity",
        50.0,
    ),
    (("--tenant-budgets", "acme=0.25,b=0"), "admission.tenant_budgets", {"acme": 0.25, "b": 0.0}),
    (("--horizon", "60s"), "horizon", "60s"),
    (("--horizon", "5000000"), "horizon", "5000000"),
    (("--workload", "chatbot"), "workload.preset", "chatbot"),
]


@pytest.mark.parametrize(("flags", "key", "value"), VALUES, ids=[" ".join(flags) for flags, _, _ in VALUES])
def test_a_flag_sets_its_key(flags: tuple[str, ...], key: str, value: object) -> None:
    found: object = given(*flags)
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value


def test_blis_flags_that_ask_for_nothing_are_accepted(blis: Blis, small: tuple[str, ...]) -> None:
    plain = blis("run", *small)
    defaults = "--admission-policy always-admit --dp 1 --kv-cpu-blocks 0 --queue-depth-threshold 5.0"
    harmless = (
        "--token-bucket-capacity 10000 --counterfactual-k 0 --log debug --lazy-generation "
        "--trace-level none --usage-limit-threshold 1"
    )
    assert blis("run", *small, *defaults.split(), *harmless.split()) == plain
    assert plain[0] == 0


def test_a_flag_beats_the_policy_bundle_which_beats_the_config_file(tmp_path: Path) -> None:
    config, bundle = tmp_path / "config.yaml", tmp_path / "bundle.yaml"
    config.write_text(
        "scheduler: {policy: fcfs, preemption_policy: fcfs, max_num_seqs: 3}\nnum_instances: 2\n"
    )
    bundle.write_text(
        "scheduler: sjf\npreemption: {policy: priority}\nrouting: {policy: least-loaded}\n"
        "admission: {policy: always-admit, slo_priorities: {batch: 2}}\n"
    )
    resolved = given("--config", str(config), "--policy-config", str(bundle), "--scheduler", "priority-fcfs")
    assert resolved.scheduler.policy == "priority-fcfs"
    assert resolved.scheduler.preemption_policy == "priority"
    assert resolved.scheduler.max_num_seqs == 3
    assert resolved.routing.policy == "least-loaded"
    assert resolved.admission.slo_priorities == {"batch": 2}
    assert resolved.num_instances == 2


def test_a_bundle_that_names_tier_shed_keeps_standard_requests_and_the_flag_alone_all_but_the_sheddable(
    tmp_path: Path,
) -> None:
    bundle = tmp_path / "bundle.yaml"
    bundle.write_text("admission: {policy: tier-shed}\n")
    assert given("--policy-config", str(bundle)).admission.tier_shed_min_priority == 3
    assert given("--admission-policy", "tier-shed").admission.tier_shed_min_priority == 0
    bundle.write_text("admission: {policy: tier-shed, tier_shed_min_priority: -2}\n")
    assert given("--policy-config", str(bundle)).admission.tier_shed_min_priority == -2


def test_what_has_no_effect_on_the_admission_policy_is_refused_as_a_flag_and_reported_of_a_bundle(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    code, _, err = blis("run", *small, "--admission-policy", "tier-shed", "--gaie-qd-threshold", "3")
    assert code == 2
    assert "--gaie-qd-threshold: has no effect on tier-shed; give --admission-policy gaie-legacy" in err
    bundle = tmp_path / "bundle.yaml"
    bundle.write_text("admission: {policy: tier-shed, gaie_qd_threshold: 3}\n")
    code, _, err = blis("run", *small, "--policy-config", bundle)
    assert code == 0
    assert "note: " in err
    assert "admission.gaie_qd_threshold has no effect on tier-shed" in err


QUEUE = "--flow-control --saturation-detector concurrency"
USELESS = [
    (
        "--queue-depth-threshold 3",
        "--queue-depth-threshold: has no effect without flow control; add --flow-control",
    ),
    ("--queue-shedding", "--queue-shedding: has no effect without flow control"),
    ("--engine blis --max-concurrency 8", "--max-concurrency: has no effect without flow control"),
    (
        f"{QUEUE} --queue-depth-threshold 3",
        "has no effect on concurrency; give --saturation-detector utilization",
    ),
    (f"{QUEUE} --queue-shedding", "--queue-shedding: needs a limit"),
    (f"{QUEUE} --slo-targets critical=5", "--slo-targets: have no effect on fifo"),
    (
        f"{QUEUE} --slo-targets critical=soon",
        "--slo-targets: must give each class once with its target in µs",
    ),
    (f"{QUEUE} --usage-limit-threshold 1.5", "--usage-limit-threshold: must be at most 1"),
    (
        f"{QUEUE} --dispatch-order lifo",
        "--dispatch-order: unknown value (found 'lifo'); did you mean 'fifo'?",
    ),
    (f"{QUEUE} --fairness-policy robin", "--fairness-policy: unknown value"),
    ("--flow-control --saturation-detector utilisation", "did you mean 'utilization'?"),
    ("--flow-control --request-ttl -5", "--request-ttl: must be at least 0"),
]


@pytest.mark.parametrize(("flags", "complaint"), USELESS, ids=[flags for flags, _ in USELESS])
def test_what_would_have_no_effect_on_the_gateway_is_refused(
    blis: Blis, small: tuple[str, ...], flags: str, complaint: str
) -> None:
    code, out, err = blis("run", *small, *flags.split())
    assert (code, out) == (2, "")
    assert complaint in err.splitlines()[-1]


def test_the_limit_of_the_detector_has_two_names_one_of_them_that_of_the_benchmark() -> None:
    limited = given(*QUEUE.split(), "--max-concurrency-per-instance", "8")
    assert limited.gateway.max_concurrency_per_instance == 8
    assert given(*QUEUE.split(), "--max-concurrency", "8") == limited
    assert given("--max-concurrency", "8").workload.concurrency == 8


def test_ticks_are_those_of_the_peer_where_its_engine_is_simulated() -> None:
    assert given(*QUEUE.split()).gateway.dispatch_tick_interval_us is None
    assert given(*QUEUE.split(), "--engine", "blis").gateway.dispatch_tick_interval_us == 1000
    assert given(*QUEUE.split(), "--dispatch-tick-interval", "0").gateway.dispatch_tick_interval_us == 1000


def test_keywords_and_a_bundle_say_the_same_of_the_gateway_as_flags(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.yaml"
    bundle.write_text("admission: {slo_targets: {critical: 150000}}\n")
    deadline = (*QUEUE.split(), "--dispatch-order", "slo-deadline")
    by_bundle = given(*deadline, "--policy-config", str(bundle))
    assert by_bundle == given(*deadline, "--slo-targets", "critical=150000")
    assert by_bundle == api.configure(
        model="qwen3-14b",
        flow_control=True,
        saturation_detector="concurrency",
        dispatch_order="slo-deadline",
        slo_targets={"critical": 150_000},
    )


def test_flow_control_that_holds_nothing_back_and_targets_that_order_nothing_are_reported(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.yaml"
    bundle.write_text("admission: {slo_targets: {critical: 150000}}\n")
    code, _, err = blis("run", *small, "--flow-control", "--policy-config", bundle)
    assert code == 0
    assert "flow control without a saturation detector dispatches every request at once" in err
    assert "admission.slo_targets have no effect without --flow-control" in err


def test_goodput_takes_several_values_as_in_vllm() -> None:
    assert parse(["--goodput", "ttft:1", "tpot:2", "--tp", "2"], GROUPS) == {
        "--goodput": ["ttft:1", "tpot:2"],
        "--tp": 2,
    }


def test_a_replay_can_be_stretched_to_a_rate(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{i},10,2\n" for i in range(5)))
    table = api.build(model="qwen3-14b", trace=str(trace), rate=4.0, num_requests=3).table
    assert (table.arrival_ns / 1e9).tolist() == [0.0, 0.25, 0.5]
