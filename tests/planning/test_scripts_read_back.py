"""Start scripts and manifests that a plan writes are read back as the configuration that was simulated."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import blis_py as blis
from blis_py.config.engine import load_engine, names
from blis_py.config.loader import load_config, pool_configs
from blis_py.launch.own_settings import lines_of, own_settings, server_settings
from blis_py.launch.reader import read_launch
from blis_py.planning import serving
from blis_py.planning.fleet_script import fleet_script
from blis_py.planning.job import JobOutcome
from blis_py.planning.result import Candidate

CANDIDATES = [
    "trtllm-1.0.0rc3",
    "trtllm-1.1.0rc2",
    "trtllm-1.2.0rc6.post1",
    "trtllm-1.3.0rc1",
    "sglang-0.5.6.post2",
]


def presets() -> list[str]:
    """Every bundled preset, every release that one of them describes, and some candidates."""
    found = [*names(), *CANDIDATES]
    for name in names():
        releases = load_engine(name).releases
        if not releases:
            continue
        (*numbers, first), (*same, last) = ([int(part) for part in text.split(".")] for text in releases)
        assert numbers == same
        head = ".".join([name.partition("-")[0] + "-" + str(numbers[0]), *map(str, numbers[1:])])
        found += [f"{head}.{number}" for number in range(first, last + 1)]
    return sorted(set(found))


def test_the_releases_of_all_presets_are_tried() -> None:
    found = presets()
    assert {"vllm-0.10", "vllm-0.33", "sglang-0.5.1", "sglang-0.5.23", "trtllm-1.0", "trtllm-1.3"} <= {*found}
    assert len(found) > 50


def planned(**settings: Any) -> Any:
    """A planned candidate with these settings."""
    settings.setdefault("model", "llama-3.1-8b")
    simulation = blis.build(num_requests=3, **settings)
    config = simulation.config
    outcome = JobOutcome(facts=simulation.schedulers())
    return Candidate({}, config.instances, config, 1, None, SimpleNamespace(), outcome)


def written(best: Any) -> dict[str, str]:
    """The files for the engine that was simulated."""
    engine = serving.engine_of(best.config)
    texts = {
        "vllm": {"vllm.sh": serving.vllm_script, "values.yaml": serving.llmd_values},
        "sglang": {"sglang.sh": serving.sglang_script},
        "trtllm": {"trtllm.sh": serving.trtllm_script},
    }[engine]
    return {name: text(best) for name, text in texts.items()}


def read_back(text: str, name: str, folder: Path) -> Any:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    launch = read_launch([str(path)])
    assert not launch.unknown
    return load_config(overrides=launch.values)


@pytest.mark.parametrize("engine", presets())
def test_what_a_plan_writes_is_read_back_for_every_preset_and_release(engine: str, tmp_path: Path) -> None:
    best = planned(engine=engine, tp=2, gpu="h200", num_instances=3, routing_policy="least-loaded")
    files = written(best)
    assert files
    for name, text in files.items():
        assert server_settings(read_back(text, name, tmp_path)) == server_settings(best.config), name


VARIED: dict[str, dict[str, Any]] = {
    "limits": {"max_num_seqs": 40, "max_num_batched_tokens": 3000, "max_model_len": 5000, "block_size": 32},
    "pool": {"num_kv_blocks": 4000, "gpu_memory_utilization": 0.85},
    "order": {"scheduler": "priority-fcfs", "prefix_cache": "none"},
    "other order": {"scheduler": "sjf", "async_scheduling": False, "cuda_graphs": False},
    "formats": {"kv_cache_dtype": "fp8", "cuda_graph_sizes": [1, 2, 4]},
    "fleet": {"num_instances": 4, "admission_policy": "token-bucket", "frontend_ms": [1, 0, 0, 0]},
    "experts": {"model": "qwen3-30b-a3b", "tp": 4, "attention_dp": 4, "ep": 4},
    "half of it": {"model": "qwen3-30b-a3b", "tp": 4, "attention_dp": 2, "ep": 2, "max_num_seqs": 64},
    "kernels": {"model": "gpt-oss-20b", "moe_backend": "triton"},
}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "blis"])
@pytest.mark.parametrize("name", VARIED)
def test_what_a_plan_writes_is_read_back_whatever_is_set(engine: str, name: str, tmp_path: Path) -> None:
    settings = dict(VARIED[name])
    if engine == "blis" and "attention_dp" in settings:
        settings |= {"attention_dp": 1, "ep": 1}  # which its latency model does not price
    if engine == "blis":
        for key in ("cuda_graphs", "cuda_graph_sizes", "moe_backend", "frontend_ms"):
            settings.pop(key, None)
    best = planned(engine=engine, **{"tp": 2, "gpu": "h200", **settings})
    for file, text in written(best).items():
        assert server_settings(read_back(text, file, tmp_path)) == server_settings(best.config), file


def test_a_script_of_another_engine_than_the_simulated_one_does_not_say_that_it_was() -> None:
    best = planned(engine="vllm")
    assert "# blis:" in serving.vllm_script(best)
    assert "# blis:" not in serving.sglang_script(best)
    assert "# blis:" not in serving.trtllm_script(best)


def test_real_flags_divide_the_limits_as_their_server_does() -> None:
    wide = {"model": "qwen3-30b-a3b", "tp": 4, "attention_dp": 4, "ep": 4, "max_num_seqs": 64, "gpu": "h200"}
    words = serving.vllm_script(planned(**wide))
    assert "--tensor-parallel-size 1" in words
    assert "--data-parallel-size 4 --enable-expert-parallel" in words
    assert "--max-num-seqs 64" in words
    best = planned(
        engine="sglang", model="qwen3-30b-a3b", tp=4, attention_dp=4, ep=4, max_num_seqs=64, gpu="h200"
    )
    assert "--max-running-requests 256" in serving.sglang_script(best)


def test_a_model_that_has_a_configuration_of_its_own_is_its_folder() -> None:
    assert serving.published_model(None, "/models/mine/config.json") == "/models/mine"


@pytest.mark.parametrize(
    "settings", [{"a": "1", "b": 1, "c": [1, 2], "d": None, "e": "x y", "f": True, "g": {"h": 0.5}}]
)
def test_lines_of_settings_are_read_back(settings: dict[str, Any]) -> None:
    assert own_settings("\n".join(lines_of(settings)), "file") == settings


APART: dict[str, dict[str, Any]] = {
    "pair": {"prefill_instances": 2, "decode_instances": 1, "prefill_tp": 2, "decode_tp": 4},
    "unlike experts": {
        "model": "qwen3-30b-a3b",
        "xpyd": "1p2d",
        "prefill_tp": 2,
        "prefill_ep": 2,
        "decode_tp": 4,
        "decode_attention_dp": 4,
        "decode_ep": 4,
        "decode_max_num_seqs": 64,
        "pd_link": "nvlink",
    },
    "beside shared ones": {
        "prefill_instances": 1,
        "decode_instances": 1,
        "prefill_decode_instances": 1,
        "decode_gpu": "h100",
    },
    "other pools": {
        "pools": [
            {"name": "new", "count": 2, "gpu": "b200", "price_per_hour": 3.0, "weight": 2.0},
            {"name": "old", "count": 1, "tp": 2, "scheduler": {"max_num_seqs": 16}},
        ]
    },
}


@pytest.mark.parametrize("engine", ["vllm", "vllm-0.12", "sglang", "sglang-0.5.9", "trtllm"])
@pytest.mark.parametrize("name", APART)
def test_the_script_of_a_fleet_with_pools_is_read_back(engine: str, name: str, tmp_path: Path) -> None:
    best = planned(engine=engine, gpu="h200", **APART[name])
    found = fleet_script(best)
    assert found is not None
    file, text = found
    back = read_back(text, file, tmp_path)
    assert server_settings(back) == server_settings(best.config)
    wanted, pools = (
        [(each.name, each.count, server_settings(own)) for each, own in pool_configs(config)]
        for config in (best.config, back)
    )
    assert pools == wanted


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_flags_alone_have_the_pools_of_a_fleet(engine: str) -> None:
    best = planned(engine=engine, gpu="h200", **APART["unlike experts"])
    found = fleet_script(best)
    assert found is not None
    flags = "\n".join(line for line in found[1].splitlines() if not line.startswith("# blis:"))
    back = load_config(overrides={"gpu": "h200", **read_launch([flags]).values})
    for (pool, own), (wanted, theirs) in zip(pool_configs(back), pool_configs(best.config), strict=True):
        assert (pool.role, pool.count) == (wanted.role, wanted.count)
        assert [own.tp, own.attention_dp, own.ep] == [theirs.tp, theirs.attention_dp, theirs.ep]
        assert own.scheduler.max_num_seqs == theirs.scheduler.max_num_seqs
        assert own.scheduler.max_num_batched_tokens == theirs.scheduler.max_num_batched_tokens


def test_pools_of_several_engines_have_no_script() -> None:
    pools = [{"name": "a", "engine": "vllm"}, {"name": "b", "engine": "sglang"}]
    assert fleet_script(planned(gpu="h200", pools=pools)) is None


@pytest.mark.parametrize("former", ["prefill-only", "running-first"])
def test_a_script_of_sglang_forms_batches_as_simulated(former: str, tmp_path: Path) -> None:
    text = serving.sglang_script(planned(engine="sglang", gpu="h200", batch_former=former))
    assert "batches formed" not in text
    assert ("--enable-mixed-chunk" in text) == (former == "running-first")
    assert read_back(text, "sglang.sh", tmp_path).scheduler.batch_former == former


def test_blocks_that_vllm_raises_for_states_are_not_set_by_the_script() -> None:
    best = planned(model="qwen3-next-80b-a3b", gpu="h200", tp=2, engine="vllm")
    assert best.outcome.facts["scheduler"]["block_size"] == 576
    assert "--block-size" not in serving.vllm_script(best)
    plain = planned(model="qwen3-14b", gpu="h200", engine="vllm")
    assert "--block-size 16 " in serving.vllm_script(plain)
