"""Launch files made after public recipes resolve to the settings that their servers ran with."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest
from launch_fixtures import EXPECTED, FOLDER, launch_of

from blis_py.config.loader import load_config, pool_configs

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
SCRIPTS = [name for name in EXPECTED if name.endswith(".sh")]
IN_GROUPS = [name for name, expected in EXPECTED.items() if "group" in expected]


def test_every_fixture_is_expected_to_be_something() -> None:
    there = {path.name for path in FOLDER.glob("*") if path.name not in ("expected.yaml", "llama70b.yml")}
    assert there == set(EXPECTED)
    assert len(EXPECTED) >= 20
    engines = [name.partition("_")[0] for name in SCRIPTS]
    assert all(engines.count(engine) >= 5 for engine in ("vllm", "sglang", "trtllm"))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_launch_file_resolves_to_these_settings_and_no_others(name: str) -> None:
    launch, expected = launch_of(name), EXPECTED[name]
    assert launch.values == expected["settings"]
    named = [re.split(r"[ =:]", each)[0] for each in launch.unmodelled]
    assert sorted(named) == sorted(expected.get("unmodelled", []))
    assert launch.unknown == expected.get("unknown", [])
    assert not [note for note in launch.notes if "cannot be decided" in note]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_settings_of_a_launch_file_are_a_configuration(name: str) -> None:
    expected = EXPECTED[name]
    given = {key: value for key, value in launch_of(name).values.items() if key != "gpu"}
    given.setdefault("model", expected.get("model"))
    config = load_config(overrides={"gpu": expected.get("gpu", "h100"), **given})
    assert config.engine == given["engine"]
    assert all(own.engine.startswith(("vllm", "sglang", "trtllm")) for _, own in pool_configs(config))


def sides(launch: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by phase, flat; of a server that does both under an empty name."""
    if "pools" not in launch:
        return {"": launch}
    found = {}
    for pool in launch["pools"]:
        flat: dict[str, Any] = {}
        for key, value in pool.items():
            inner = value.items() if isinstance(value, dict) else ()
            flat |= {f"{key}.{leaf}": each for leaf, each in inner} or {key: value}
        found[pool["role"]] = {**{key: value for key, value in launch.items() if key != "pools"}, **flat}
    return found


def published(row: dict[str, str], column: str, side: str) -> str:
    """What the table says of a side."""
    text = row[f"{side}_{column}"] if side and f"{side}_{column}" in row else row[column]
    match = re.fullmatch(r"prefill (.*?)\s*\| decode (.*)", text)
    said = text if match is None else match[1 if side == "prefill" else 2]
    return "" if said == "-" else said


NUMBERS = {
    "mem_util": "scheduler.gpu_memory_utilization",
    "max_model_len": "scheduler.max_model_len",
    "scheduler_recv_interval": "scheduler.receive_interval",
}


@pytest.mark.parametrize("name", IN_GROUPS)
def test_the_settings_are_those_of_the_public_table(name: str) -> None:
    folder, _, group = EXPECTED[name]["group"].partition("/")
    table = DATA / folder / "server_flags.csv"
    if not table.exists():
        pytest.skip("the table of launch flags is not here")
    with table.open() as file:
        row = next(row for row in csv.DictReader(file) if row["group"] == group)
    concurrency = EXPECTED[name].get("with", {}).get("CONC", "")
    for side, own in sides(launch_of(name).values).items():
        replicas = own["attention_dp"]
        assert own["tp"] == int(published(row, "tp_flag", side))
        assert (replicas > 1) == ("attention-dp" in published(row, "data_parallel", side)) or (
            (replicas > 1) == ("dp-attention" in published(row, "data_parallel", side))
        )
        experts = re.search(r"\d+", published(row, "expert_parallel", side))
        on = own["tp"] if published(row, "expert_parallel", side) == "on" else 1
        assert own["ep"] == (int(experts[0]) if experts else on)
        for column, key in NUMBERS.items():
            text = published(row, column, side)
            if text and not text.startswith("default"):
                assert own[key] == float(text), column
        divided = replicas if own["engine"].startswith("sglang") else 1
        for column, key in (
            ("token_budget", "scheduler.max_num_batched_tokens"),
            ("max_seqs", "scheduler.max_num_seqs"),
        ):
            text = published(row, column, side).replace("CONC", concurrency)
            assert own.get(key) == (None if text.startswith("default") else int(text) // divided), column
        formats = {"fp8": "fp8", "fp8_e4m3": "fp8", "auto": "auto"}
        assert own.get("kv_cache_dtype", "auto") == formats[published(row, "kv_cache_dtype", side)]
        assert (own.get("scheduler.prefix_cache") == "none") == (row["prefix_cache"] == "off")
        graphs = re.search(r"\d+|CONC", published(row, "cuda_graph", side))
        if graphs:
            assert own["latency.cuda_graph_max_size"] == int(graphs[0].replace("CONC", concurrency))
        assert own.get("latency.cuda_graph_padding", False) == (
            "padded" in published(row, "cuda_graph", side)
        )
        kernels = published(row, "moe_backend", side).lower()
        if kernels:
            assert own["latency.moe_backend"] == kernels
