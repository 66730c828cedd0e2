"""Every flag of a server has exactly one outcome: applied, without effect, not modelled, or unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from blis_py.config.layers import flatten
from blis_py.config.loader import as_dict, load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.launch.findings import LaunchFindings
from blis_py.launch.flag_table import ENGINES, SECTIONS, FlagMeaning, flag_table
from blis_py.launch.reader import Launch, read_launch

START = {
    "vllm": "vllm serve openai/gpt-oss-120b",
    "sglang": "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1",
    "trtllm": "trtllm-serve deepseek-ai/DeepSeek-R1",
}
KEYS = set(flatten(as_dict(RunConfig()), RunConfig))
SAMPLES = {
    "count": "4",
    "share": "0.5",
    "switch": "true",
    "on": "true",
    "inverse": "true",
    "sizes": "1 2",
    "format": "fp8",
}


_SHARED = "--tp 8 --dp 8 --enable-dp-attention"
_DRAFTS = "--speculative-config '{\"num_speculative_tokens\": 3}'"
_CACHE = '--kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1"}\''


def line(engine: str, flags: str, **variables: str) -> Launch:
    return read_launch([f"{START[engine]} {flags}"], variables)


def entries(engine: str) -> Iterator[tuple[str, str, FlagMeaning]]:
    table = flag_table(engine)
    for section in SECTIONS:
        for name, meaning in table.meanings[section].items():
            yield section, name, meaning


def outcomes(found: LaunchFindings) -> int:
    lists = (found.idle, found.unmodelled, found.unknown)
    return sum(map(len, lists)) + len(found.settings) + len(found.parts)


def text_of(meaning: FlagMeaning) -> str:
    if meaning.values:
        return next(iter(meaning.values))
    return "" if meaning.switch else SAMPLES.get(meaning.read, "4")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_entry_of_the_tables_has_one_outcome_and_a_setting_that_exists(engine: str) -> None:
    sorted_flags = 0
    for section, name, meaning in entries(engine):
        assert not meaning.key or meaning.key in KEYS, name
        if meaning.refuse or meaning.read == "json":
            continue
        found = LaunchFindings(flag_table(engine))
        found.add(section, name, text_of(meaning))
        assert outcomes(found) == 1, name
        for key, (value, _) in found.settings.items():
            load_config(overrides={key: value, "engine": engine})
        sorted_flags += 1
    assert sorted_flags > 100


@pytest.mark.parametrize(
    ("engine", "flags", "key", "value"),
    [
        ("vllm", "--max_num_seqs=64", "scheduler.max_num_seqs", 64),
        ("vllm", "--max-num-seqs 64 --max-num-seqs 32", "scheduler.max_num_seqs", 32),
        ("vllm", "--max-num-batched-tokens 16k", "scheduler.max_num_batched_tokens", 16000),
        ("vllm", "-tp 2", "tp", 2),
        ("vllm", "-tp 2 -dp 4", "attention_dp", 4),
        ("vllm", "-tp 2 -dp 4 --enable-expert-parallel", "ep", 8),
        ("vllm", "--cuda-graph-sizes 512", "latency.cuda_graph_max_size", 512),
        ("vllm", "--cuda-graph-sizes 1 2 4", "latency.cuda_graph_sizes", [1, 2, 4]),
        ("vllm", "--compilation-config.cudagraph_mode NONE", "latency.cuda_graphs", False),
        ("vllm", "-cc '{\"cudagraph_capture_sizes\": [1, 8]}'", "latency.cuda_graph_sizes", [1, 8]),
        ("vllm", "--watermark 0.01", "scheduler.watermark", 0.01),
        ("vllm", "--scheduling-policy priority", "scheduler.policy", "priority-fcfs"),
        ("sglang", "--tp-size 8 --dp-size 8 --enable-dp-attention", "attention_dp", 8),
        (
            "sglang",
            "--tp 8 --dp 8 --enable-dp-attention --chunked-prefill-size 65536",
            "scheduler.max_num_batched_tokens",
            8192,
        ),
        ("sglang", "--tp 8 --moe-a2a-backend deepep", "ep", 8),
        ("sglang", "--tp 8 --moe-a2a-backend deepep", "latency.moe_backend", "deepep"),
        ("sglang", "--max-total-tokens 32000", "scheduler.num_kv_blocks", 2000),
        ("sglang", "--disable-overlap-schedule", "scheduler.async_scheduling", False),
        ("sglang", "--schedule-conservativeness 0.3", "scheduler.schedule_conservativeness", 0.3),
        ("sglang", "--chunked-prefill-size -1", "scheduler.max_num_batched_tokens", 16384),
        (
            "sglang",
            "--chunked-prefill-size -1 --max-prefill-tokens 4096",
            "scheduler.max_num_batched_tokens",
            4096,
        ),
        ("trtllm", "--tp_size 8 --enable_attention_dp", "attention_dp", 8),
        ("trtllm", "--ep_size 4 --tp_size 4", "ep", 4),
    ],
)
def test_a_flag_sets_what_it_means(engine: str, flags: str, key: str, value: Any) -> None:
    launch = line(engine, flags)
    assert launch.values[key] == value
    assert not launch.unknown


def test_dense_models_have_whole_instances_as_data_parallel_ranks() -> None:
    launch = read_launch(["vllm serve Qwen/Qwen3-32B -tp 2 -dp 4 --enable-expert-parallel"])
    assert (launch.values["tp"], launch.values["ep"], launch.values["num_instances"]) == (2, 1, 4)
    launch = read_launch(["python -m sglang.launch_server --model Qwen/Qwen3-32B --tp 2 --dp 4"])
    assert (launch.values["tp"], launch.values["num_instances"]) == (2, 4)


@pytest.mark.parametrize(
    ("engine", "flags", "word"),
    [
        ("vllm", "--frobnicate 3", "--frobnicate 3"),
        ("vllm", "--max-num-sequences=3", "--max-num-sequences 3"),
        ("sglang", "stray", "stray"),
        ("trtllm", "--frobnicate", "--frobnicate"),
    ],
)
def test_an_unknown_flag_is_named(engine: str, flags: str, word: str) -> None:
    launch = line(engine, flags)
    assert word in launch.unknown
    assert any(word in each and "not known" in each for each in launch.lines())


def test_an_unknown_variable_of_an_engine_is_named_and_one_of_others_is_not() -> None:
    launch = read_launch([f"VLLM_FROB=1 PATH=/x NCCL_FROB=2 {START['vllm']}"])
    assert launch.unknown == ["VLLM_FROB=1", "NCCL_FROB=2"]


@pytest.mark.parametrize(
    ("engine", "flags", "said"),
    [
        (
            "vllm",
            "--speculative-config '{\"num_speculative_tokens\": 3}'",
            "--speculative-config: drafts are verified",
        ),
        ("vllm", "--enable-lora", "--enable-lora: adapters"),
        ("vllm", "--attention-backend FLASHINFER", "other kernels of attention"),
        (
            "vllm",
            '--kv-transfer-config \'{"kv_connector": "LMCacheConnectorV1"}\'',
            "KV is kept outside the GPU",
        ),
        ("sglang", "--speculative-algorithm EAGLE", "drafts are verified"),
        ("sglang", "--chunked-prefill-size 8192 --max-prefill-tokens 2048", "--max-prefill-tokens 2048"),
        ("sglang", "--chunked-prefill-size -1", "longer prompts are computed whole"),
        ("trtllm", "--num_postprocess_workers 4", "more processes build answers"),
    ],
)
def test_what_matters_and_is_not_modelled_is_named_with_what_it_would_change(
    engine: str, flags: str, said: str
) -> None:
    assert any(said in each for each in line(engine, flags).unmodelled)


@pytest.mark.parametrize(
    ("engine", "flags", "complaint"),
    [
        ("vllm", "-pp 2", "pipeline stages divide the layers"),
        ("trtllm", "--backend tensorrt", "the engine-file backend"),
        ("vllm", "--max-num-seqs many", "--max-num-seqs: must be a whole number (found 'many')"),
        ("vllm", "--max-num-seqs $N", "give it with --launch-env N=…"),
        ("vllm", "-cc '[1]'", "must be a mapping"),
        ("trtllm", "--config gone.yml", "names a file that is not there (found 'gone.yml')"),
        ("vllm", "--gpu-memory-utilization half", "must be a number"),
    ],
)
def test_under_what_no_result_would_hold_is_refused(engine: str, flags: str, complaint: str) -> None:
    with pytest.raises(InputError) as error:
        line(engine, flags)
    assert complaint in str(error.value)
    assert "--launch:1" in str(error.value)


def test_a_release_without_a_preset_is_named() -> None:
    launch = read_launch(["docker run vllm/vllm-openai:v0.7.3 --model Qwen/Qwen3-8B"])
    assert launch.values["engine"] == "vllm-0.8"
    assert "no preset describes vllm 0.7.3: vllm-0.8 is the nearest" in launch.notes
    launch = read_launch(["docker run -d vllm/vllm-openai:latest --model Qwen/Qwen3-8B"])
    assert any("the release of vllm is not said" in note for note in launch.notes)


def test_the_second_node_of_a_server_is_not_another_one() -> None:
    both = ["sglang serve --model-path Qwen/Qwen3-8B --nnodes 2 --tp 16 --node-rank " + rank for rank in "01"]
    assert "num_instances" not in read_launch(both).values
    with pytest.raises(InputError, match="all follow another"):
        read_launch(both[1:])


def test_alike_servers_are_instances_and_unlike_ones_pools() -> None:
    lines = [f"vllm serve Qwen/Qwen3-8B --port {port}" for port in (1, 2, 3)]
    assert read_launch(lines).values["num_instances"] == 3
    pools = read_launch([*lines, "vllm serve Qwen/Qwen3-8B -tp 2"]).values["pools"]
    assert [(pool["name"], pool["count"], pool["tp"]) for pool in pools] == [
        ("server1", 3, 1),
        ("server2", 1, 2),
    ]


def test_the_kv_role_of_vllm_makes_pools_of_prefill_and_decode() -> None:
    role = '--kv-transfer-config \'{{"kv_connector": "NixlConnector", "kv_role": "{}"}}\''
    lines = [f"vllm serve Qwen/Qwen3-8B {role.format(each)}" for each in ("kv_consumer", "kv_producer")]
    assert [pool["role"] for pool in read_launch(lines).values["pools"]] == ["prefill", "decode"]


def test_text_that_starts_no_server_is_refused() -> None:
    with pytest.raises(InputError, match="starts no server"):
        read_launch(["echo vllm serve x"])
    with pytest.raises(InputError, match="no such file"):
        read_launch(["gone.sh"])
