"""`pools:` in a configuration: unlike instances of one model, each pool with a deployment of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import blis_py as blis
from blis_py.api import run as simulated
from blis_py.config.loader import dump, load_config, pool_configs
from blis_py.errors import InputError
from blis_py.ledger.explain import explain
from blis_py.setup.disaggregation import handoff_of

Blis = Callable[..., tuple[int, str, str]]
POOLS: list[dict[str, Any]] = [
    {"name": "big", "count": 1, "price_per_hour": 3},
    {"name": "small", "count": 2, "gpu": "l40s", "scheduler": {"max_num_seqs": 8, "num_kv_blocks": 300}},
]


def written(folder: Path, **keys: Any) -> Path:
    values = {"model": "qwen3-14b", "workload": {"rate": 9, "num_requests": 30}, "pools": POOLS, **keys}
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_every_pool_has_a_line_of_capacity_before_anything_else(blis: Blis, tmp_path: Path) -> None:
    flags = ("--config", written(tmp_path), "--no-plots", "--verbose")
    code, out, err = blis("run", *flags, "--out", tmp_path / "out")
    assert code == 0
    big, small, models, *_ = err.splitlines()
    assert big.startswith("big: KV capacity: 16,247 blocks of 16 = 259,952 tokens (qwen3-14b on H100")
    assert small.startswith("small: KV capacity: 300 blocks of 16 = 4,800 tokens (as given;")
    assert models.startswith("models big: 1 instance of vLLM")
    assert "; small: 2 instances of vLLM" in models
    assert "pool" in out


def test_a_pool_is_deployed_as_a_cluster_of_such_instances_would_be(tmp_path: Path) -> None:
    """The preset of the engine is that of the pool's GPU, too."""
    together = blis.build(written(tmp_path))
    alone = blis.build(
        model="qwen3-14b", gpu="l40s", max_num_seqs=8, num_kv_blocks=300, rate=9, num_requests=30
    )
    big, small = together.pools
    assert small.scheduler == alone.scheduler
    assert small.latency.provenance == alone.latency.provenance
    assert small.scheduler.max_num_batched_tokens == 2048
    assert (big.scheduler.max_num_seqs, big.scheduler.max_num_batched_tokens) == (1024, 8192)
    assert [pool.count for pool in together.cluster().pools] == [1, 2]


def test_a_result_of_pools_is_loaded_and_run_again_from_its_folder(tmp_path: Path) -> None:
    result = blis.run(written(tmp_path))
    saved = blis.load(result.save(tmp_path / "out", plots=False))
    assert saved.summary == result.summary
    assert list(saved.summary["schedulers"]) == ["big", "small"]
    assert [one["pool"] for one in saved.summary["instances"]] == ["big", "small", "small"]
    again = blis.run(tmp_path / "out" / "config.yaml")
    assert again.summary == result.summary
    assert again.requests.equals(result.requests)
    assert blis.run(trace=str(tmp_path / "out" / "trace.csv"), **_only_pools(saved)).summary["cluster"]


def _only_pools(saved: Any) -> dict[str, Any]:
    return {"model": "qwen3-14b", "pools": saved.settings["pools"]}


def test_pools_survive_a_round_trip_through_yaml(tmp_path: Path) -> None:
    config = load_config(written(tmp_path))
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load_config(tmp_path / "again.yaml") == config
    assert yaml.safe_load(dump(config))["pools"][0] == {
        "name": "big",
        "role": "both",
        "count": 1,
        "price_per_hour": 3.0,
    }
    assert "pools" not in dump(load_config())


def test_files_of_a_pool_start_at_the_folder_of_the_configuration(tmp_path: Path) -> None:
    """An engine of one's own is a file."""
    (tmp_path / "own.yaml").write_text(
        "title: ours\nsettings:\n  scheduler.max_num_seqs: {value: 3, source: here}\n"
    )
    path = written(tmp_path, pools=[{"name": "ours", "engine": "./own.yaml"}, {"name": "theirs"}])
    config = load_config(path)
    assert config.pools[0].engine == str(tmp_path / "own.yaml")
    ours, theirs = blis.build(config).pools
    assert (ours.scheduler.max_num_seqs, theirs.scheduler.max_num_seqs) == (3, 1024)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"pools": {"a": 1}}, "pools: must be a list of pools"),
        ({"pools": [3]}, r"pools\[0\] must be a mapping"),
        ({"pools": [{"name": "a", "cout": 2}]}, r"pools\[0\].cout: unknown key .*did you mean 'count'"),
        ({"pools": [{"name": "a", "count": "two"}]}, r"pools\[0\].count: must be a whole number"),
        ({"pools": [{"count": 2}]}, "pools: pool 0 has no name"),
        ({"pools": [{"name": "a"}, {"name": "a"}]}, "two pools have the same name"),
        ({"pools": [{"name": "a", "count": 0}]}, "must be 1 to 100,000 instances in all"),
        ({"pools": [{"name": "p", "role": "prefill"}]}, "no instance serves decode"),
        ({"pools": [{"name": "p", "role": "drafts"}]}, r"pools\[0\].role: unknown value"),
        ({"links": [{"from": "a", "to": "b", "bandwidth_gbps": 50}]}, "links: nothing goes over a link"),
        ({"num_instances": 2}, "num_instances: contradicts the pools"),
        ({"pools": [{"name": "a", "scheduler": {"max_seqs": 1}}]}, "pools.a.scheduler.max_seqs: unknown key"),
        ({"pools": [{"name": "a", "gpu": "h1000"}]}, r"^pools\.a\.gpu: unknown gpu \(found 'h1000'\)"),
        ({"pools": [{"name": "a", "tp": 3}]}, r"^pools\.a\.tp: does not divide .* \(found 3\)"),
        (
            {"pools": [{"name": "a"}, {"name": "b", "scheduler": {"block_size": 32}}]},
            "scheduler.block_size: must be the same in all pools",
        ),
        (
            {"engine": "blis", "pools": [{"name": "a"}, {"name": "b", "latency": {"model": "roofline"}}]},
            "frontend_ms: must be the same in all pools",
        ),
    ],
)
def test_what_makes_no_sense_is_reported_in_one_line(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        blis.run(written(tmp_path, **keys))


APART = {"model": "qwen3-14b", "prefill_instances": 1, "decode_instances": 1, "rate": 5, "num_requests": 12}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"handoff": "sglang", "max_tokens_in_buffer": 8192},
            "max_tokens_in_buffer: has no effect with sglang",
        ),
        (
            {"handoff": "vllm", "num_reserved_decode_tokens": 100},
            "reserved_decode_tokens: has no effect with vllm",
        ),
        ({"handoff": "sglang", "kv_load_failure_policy": "recompute"}, "has no effect with sglang"),
        (
            {"handoff": "trtllm-generation-first", "pd_pair_order": "prefill-first"},
            "pair_order: has no effect",
        ),
        ({"handoff": "sglang", "kv_lease_duration": 3}, "lease_s: has no effect with sglang"),
    ],
)
def test_a_setting_of_another_hand_over_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        blis.run(**APART, **settings)


def test_a_pool_has_the_latencies_of_the_requests_it_served(blis: Blis, tmp_path: Path) -> None:
    run = simulated(written(tmp_path))
    requests, pools = run.requests, run.summary["pools"]
    for name, instances in (("big", [0]), ("small", [1, 2])):
        own = requests[requests["instance"].isin(instances)]
        for metric in ("ttft_ms", "e2e_ms"):
            assert pools[name][metric]["mean"] == pytest.approx(own[metric].mean())
        assert pools[name]["requests"]["completed"] == len(own)
        assert pools[name]["itl_ms"]["p99"] > 0
    _, out, _ = blis("run", "--config", tmp_path / "cluster.yaml", "--format", "table")
    assert any(line.split()[:2] == ["pool", "instances"] for line in out.splitlines())


@pytest.mark.parametrize(
    ("engine", "own"),
    [("vllm", "vllm"), ("vllm-0.10", "vllm"), ("sglang", "sglang"), ("trtllm", "trtllm"), ("blis", "blis")],
)
def test_the_hand_over_is_that_of_the_engine_unless_given(engine: str, own: str) -> None:
    config = blis.build(**APART, engine=engine).config
    assert handoff_of(config) == own
    assert handoff_of(blis.build(**APART, engine=engine, handoff="vllm").config) == "vllm"


def test_pools_of_a_hand_over_have_the_latencies_of_the_visits() -> None:
    summary = blis.run(**APART, handoff="sglang").summary
    prefill, decode = summary["pools"]["prefill"], summary["pools"]["decode"]
    assert decode["e2e_ms"] == summary["cluster"]["e2e_ms"]
    assert prefill["e2e_ms"]["mean"] < summary["cluster"]["ttft_ms"]["mean"] < decode["e2e_ms"]["mean"]
    assert prefill["visits"] == decode["visits"] == prefill["requests"]["completed"] == 12
    for pool, instance in zip((prefill, decode), summary["instances"], strict=True):
        assert pool["itl_ms"] == instance["itl_ms"], "of one instance each"


@pytest.mark.parametrize("handoff", ["vllm", "sglang", "blis"])
def test_the_output_of_blis_has_a_block_for_each_instance_of_a_hand_over(
    blis: Blis, tmp_path: Path, handoff: str
) -> None:
    flags = [word for name, value in APART.items() for word in (f"--{name.replace('_', '-')}", value)]
    flags += ["--handoff", handoff, "--pd-decider", "always", "--format", "blis-text"]
    code, out, err = blis("run", *flags, "--metrics-path", tmp_path / "metrics.json")
    assert code == 0, err
    blocks = [json.loads(text.split("===")[0]) for text in out.split("=== Simulation Metrics ===")[1:]]
    prefill, decode, cluster = blocks
    assert [block["instance_id"] for block in blocks] == ["instance_0", "instance_1", "cluster"]
    assert prefill["completed_requests"] == decode["completed_requests"] == cluster["completed_requests"]
    assert prefill["e2e_mean_ms"] < cluster["ttft_mean_ms"], "the end of the prefill"
    requests = json.loads((tmp_path / "metrics.json").read_text())["requests"]
    assert {request["handled_by"] for request in requests} == {"instance_1"}


def test_a_flag_that_every_pool_overrides_is_refused(blis: Blis, tmp_path: Path) -> None:
    path = written(tmp_path, pools=[{"name": "a", "gpu": "h100"}, {"name": "b", "gpu": "l40s"}])
    code, _, err = blis("run", "--config", path, "--gpu", "h200")
    assert (code, err) == (2, "error: --gpu: has no effect: every pool has its own; change it in the pools\n")
    code, _, err = blis("run", "--config", path, "--max-num-seqs", 16)
    assert code == 0


def test_a_sweep_varies_what_the_pools_leave_open_and_reports_it_of_the_rest(tmp_path: Path) -> None:
    swept = blis.sweep(written(tmp_path), vary={"rate": [4, 9]}, cache=False, workers=1)
    assert swept.table["status"].tolist() == ["ok", "ok"]
    refused = blis.sweep(written(tmp_path), vary={"num_instances": [2, 3]}, cache=False, workers=1)
    assert ["contradicts the pools" in str(row.outcome.refused) for row in refused.rows] == [True, True]


def test_the_ledger_of_a_pool_is_priced_by_its_own_latency_model(tmp_path: Path) -> None:
    """On each instance the slowest request's nanoseconds add up; the decode of the slower GPU costs more."""
    explained = [blis.explain(written(tmp_path), request=f"request_{row}", what_if=False) for row in range(3)]
    ledgers = [one.as_dict() for one in explained]
    assert {one["request"]["instance"] for one in ledgers} == {0, 1, 2}
    own = {}
    for one in ledgers:
        lines = {line["line"]: line["whole_ns"] for line in one["ledger"]}
        assert sum(lines.values()) == one["request"]["e2e_ns"]
        own[one["request"]["instance"]] = lines["decode"] / one["request"]["decode_steps"]
    assert own[0] < 0.5 * min(own[1], own[2])


def test_what_ifs_of_pools_add_an_instance_to_each(tmp_path: Path) -> None:
    explained = blis.explain(written(tmp_path), what_if=True)
    titles = [one.change.title for one in explained.what_ifs]
    assert {"2 instances in pool big instead of 1", "3 instances in pool small instead of 2"} <= {*titles}
    assert not any(one.refused for one in explained.what_ifs)


def test_pools_are_cross_checked_together(blis: Blis, tmp_path: Path) -> None:
    code, out, _ = blis("run", "--config", written(tmp_path), "--cross-check", "--format", "table")
    assert code == 0
    table = out[out.index("latency model") :]
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["trained", "roofline", "trained-physics"]


def test_an_explanation_of_a_hand_over_names_both_visits_and_adds_up(blis: Blis, tmp_path: Path) -> None:
    sides = ("--prefill-instances", 1, "--decode-instances", 1)
    run = ("run", "--model", "qwen3-14b", *sides, "--num-requests", 12, "--rate", 9, "--no-plots")
    assert blis(*run, "--out", tmp_path / "out")[0] == 0
    rows = (tmp_path / "out" / "visits.csv").read_text().splitlines()
    assert [row.split(",")[2] for row in rows[1:]] == ["prefill", "decode"] * 12
    explained = explain(tmp_path / "out").as_dict()
    request, pools = explained["request"], [one["pool"] for one in explained["request"]["visits"]]
    assert pools == ["prefill", "decode"]
    assert sum(line["first_token_ns"] for line in explained["ledger"]) == request["ttft_ns"]
    assert sum(line["whole_ns"] for line in explained["ledger"]) == request["e2e_ns"]
    added = [one for one in explained["what_ifs"] if " instances in pool " in one["change"]]
    assert len(added) == 2
    assert not any("refused" in one for one in added)


@pytest.mark.parametrize("name", ["small", "long-context"])
def test_a_key_of_a_pool_is_set_by_its_name(tmp_path: Path, name: str) -> None:
    pools = [POOLS[0], {**POOLS[1], "name": name}]
    sets = (f"pools.{name}.count=3", f"pools.{name}.scheduler.max_num_seqs=4", "pools.big.gpu=l40s")
    config = load_config(written(tmp_path, pools=pools), sets=sets)
    big, small = config.pools
    assert (big.count, big.gpu) == (1, "l40s")
    assert (small.count, small.gpu) == (3, "l40s")
    assert small.scheduler == {"max_num_seqs": 4, "num_kv_blocks": 300}
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load_config(tmp_path / "again.yaml").pools == config.pools


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("pools.smal.count", 2, "no such pool.*did you mean 'small'"),
        ("pools.small.cont", 2, "unknown key.*did you mean 'count'"),
        ("pools.small.count", -1, "at least 0"),
        ("pools.small.count", "two", "whole number"),
    ],
)
def test_a_wrong_key_of_a_pool_is_refused(tmp_path: Path, key: str, value: Any, problem: str) -> None:
    with pytest.raises(InputError, match=f"(?s){problem}"):
        load_config(written(tmp_path), sets=(f"{key}={value}",))


def test_a_key_of_a_pool_without_pools_is_refused() -> None:
    with pytest.raises(InputError, match="there are no pools"):
        load_config(sets=("pools.small.count=2",))


def test_a_sweep_varies_the_number_of_instances_of_a_pool(tmp_path: Path) -> None:
    found = blis.sweep(written(tmp_path), vary={"pools.small.count": [1, 2], "pools.big.gpu": ["h100"]})
    assert found.table["pools.small.count"].tolist() == [1, 2]
    assert found.table["num_instances"].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("more", "ranks"),
    [
        ({"engine": "sglang"}, "follow-bootstrap-room"),
        ({"engine": "sglang", "rank_choice": "total-tokens"}, "total-tokens"),
        ({"engine": "sglang", "handoff": "trtllm"}, "round-robin"),
        ({"engine": "trtllm"}, "balanced-tokens"),
    ],
)
def test_ranks_of_a_prefill_pool_of_sglang_are_chosen_at_random(more: dict[str, str], ranks: str) -> None:
    """By the number of the hand-over, SGLang's default; on decode instances round-robin."""
    sides = {"disaggregation.prefill_instances": 1, "disaggregation.decode_instances": 1}
    keys = {"handoff": "disaggregation.handoff", "rank_choice": "scheduler.rank_choice"}
    given = {keys.get(name, name): value for name, value in more.items()}
    common = {"model": "qwen3-30b-a3b", "tp": 4, "attention_dp": 4, "ep": 4}
    config = load_config(overrides={**common, **sides, **given})
    prefill, decode = (own for _, own in pool_configs(config))
    assert prefill.scheduler.rank_choice == ranks
    assert decode.scheduler.rank_choice == config.scheduler.rank_choice


def test_kv_between_unequal_degrees_is_priced_as_the_bytes_of_the_receiving_side() -> None:
    """4 KV heads: on 8 GPUs each is held twice."""
    settings = {"model": "qwen3-30b-a3b", "xpyd": "1p1d", "rate": 5, "num_requests": 12}
    runs = [blis.run(**settings, decode_tp=tp) for tp in (1, 2, 8)]
    gb = [run.summary["handovers"]["handover_gb"] for run in runs]
    assert gb[1] == gb[0]
    assert gb[2] == 2 * gb[0]
    said = [[note for note in run.notes if note.startswith("KV goes between TP")] for run in runs]
    assert [len(notes) for notes in said] == [0, 1, 1]
    assert "TP 1 and 8: priced as the bytes that the receiving side holds" in said[2][0]


def test_block_diffusion_apart_is_refused_with_the_reason(blis: Blis) -> None:
    code, _, err = blis("run", "--workload", "diffusion-tiny", "--model", "llada2.0-mini", "--xpyd", "1p1d")
    assert code == 2
    assert "no engine hands over block diffusion" in err
