"""Services of KServe, jobs of srt-slurm, and the file of `trtllm-serve disaggregated`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_py.config.loader import load_config
from blis_py.errors import InputError
from blis_py.launch.reader import Launch, read_launch

LLM = """
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceServiceConfig
metadata: {name: few-seqs}
spec:
  template:
    containers:
      - {name: main, image: "vllm/vllm-openai:v0.19.0", args: ["--max-num-seqs", "64"]}
---
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: qwen}
spec:
  model: {uri: "hf://Qwen/Qwen3-30B-A3B", name: qwen}
  replicas: 3
  baseRefs: [{name: few-seqs}]
  parallelism: {tensor: 2, data: 2, expert: true}
  template:
    nodeSelector: {nvidia.com/gpu.product: NVIDIA-H200}
    containers:
      - name: main
        env: [{name: VLLM_ADDITIONAL_ARGS, value: "--gpu-memory-utilization=0.92 --frob"}]
        resources: {limits: {nvidia.com/gpu: "4"}}
"""
SERVICE = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: qwen}
spec:
  predictor:
    minReplicas: 2
    model:
      modelFormat: {name: huggingface}
      args: ["--model_name=qwen", "--model_dir=/mnt/models", "--max-model-len=4096"]
      storageUri: hf://Qwen/Qwen3-14B:main
      resources: {limits: {nvidia.com/gpu: "2"}}
    workerSpec: {tensorParallelSize: 2, pipelineParallelSize: 1}
"""
RUNTIME = """
kind: ServingRuntime
metadata: {name: own}
spec:
  containers:
    - name: kserve-container
      image: vllm/vllm-openai:v0.18.1
      command: [python, -m, vllm.entrypoints.openai.api_server]
      args: ["--model=/mnt/models", "--port=8080"]
---
kind: InferenceService
metadata: {name: qwen}
spec:
  predictor:
    model:
      modelFormat: {name: vLLM}
      runtime: own
      storageUri: hf://Qwen/Qwen3-14B
      args: ["--tensor-parallel-size=2"]
"""
PAIR = """
hostname: localhost
port: 8000
model: Qwen/Qwen3-30B-A3B
kv_cache_config: {free_gpu_memory_fraction: 0.8}
context_servers:
  num_instances: 2
  tensor_parallel_size: 2
  moe_expert_parallel_size: 2
  enable_attention_dp: true
  disable_overlap_scheduler: true
  urls: ["localhost:8001", "localhost:8002"]
generation_servers:
  num_instances: 1
  tensor_parallel_size: 4
  moe_expert_parallel_size: 4
  cache_transceiver_config: {max_tokens_in_buffer: 4096}
  urls: ["localhost:8003"]
"""
JOB = """
name: job
model: {path: qwen, container: "lmsysorg/sglang:v0.5.9", precision: bf16}
resources: {gpu_type: h200, prefill_nodes: 1, prefill_workers: 2, decode_workers: 1, gpus_per_node: 8}
backend:
  prefill_environment: {SGLANG_SCHEDULER_RECV_INTERVAL: "10"}
  sglang_config:
    prefill:
      served-model-name: Qwen/Qwen3-30B-A3B
      tp-size: 4
      dp-size: 4
      ep-size: 4
      enable-dp-attention: true
      chunked-prefill-size: 32768
      disable-cuda-graph: true
      numa-node: [0, 0, 1, 1]
    decode:
      served-model-name: Qwen/Qwen3-30B-A3B
      tensor-parallel-size: 8
      cuda-graph-bs: [1, 2, 4]
      num-reserved-decode-tokens: 112
benchmark: {type: sa-bench, isl: 1024, osl: 1024}
"""


def read(text: str, folder: Path, name: str = "file.yaml") -> Launch:
    path = folder / name
    path.write_text(text)
    return read_launch([str(path)])


def pools(launch: Launch) -> list[tuple[Any, ...]]:
    """Role, instances, GPUs, replicas of attention and groups of experts of every pool."""
    keys = ("role", "count", "tp", "attention_dp", "ep")
    return [tuple(pool[key] for key in keys) for pool in launch.values["pools"]]


def loads(launch: Launch) -> None:
    """Raises: a setting that there is not."""
    load_config(overrides={"gpu": "h200", **launch.values})


def test_a_service_of_kserve_for_language_models_takes_its_widths_and_configurations(tmp_path: Path) -> None:
    launch = read(LLM, tmp_path)
    values = launch.values
    assert (values["engine"], values["model"], values["gpu"]) == ("vllm-0.19.0", "Qwen/Qwen3-30B-A3B", "h200")
    assert (values["tp"], values["attention_dp"], values["ep"], values["num_instances"]) == (4, 2, 4, 3)
    assert values["scheduler.max_num_seqs"] == 64
    assert values["scheduler.gpu_memory_utilization"] == 0.92
    assert launch.unknown == ["--frob"]
    assert not any("GPUs by its flags" in note for note in launch.notes)
    loads(launch)


def test_a_configuration_that_is_not_in_the_file_is_named(tmp_path: Path) -> None:
    launch = read(LLM.partition("---")[2], tmp_path)
    assert any("baseRefs few-seqs is not in the file" in note for note in launch.notes)


def test_prefill_of_such_a_service_is_a_pool_with_its_own_widths(tmp_path: Path) -> None:
    prefill = """
  prefill:
    replicas: 4
    parallelism: {tensor: 1}
    template: {containers: [{name: main, image: "vllm/vllm-openai:v0.19.0"}]}
"""
    launch = read(LLM.rstrip() + prefill, tmp_path)
    assert pools(launch) == [("prefill", 4, 1, 1, 1), ("decode", 3, 4, 2, 4)]
    loads(launch)


def test_a_service_of_kserve_has_its_model_by_its_place(tmp_path: Path) -> None:
    values = read(SERVICE, tmp_path).values
    assert (values["model"], values["tp"], values["num_instances"]) == ("Qwen/Qwen3-14B", 2, 2)
    assert values["scheduler.max_model_len"] == 4096
    staged = SERVICE.replace("pipelineParallelSize: 1", "pipelineParallelSize: 2")
    with pytest.raises(InputError, match="pipeline stages"):
        read(staged, tmp_path)


def test_a_service_of_kserve_is_started_as_its_runtime_says(tmp_path: Path) -> None:
    launch = read(RUNTIME, tmp_path)
    assert launch.values["engine"] == "vllm-0.18.1"
    assert (launch.values["model"], launch.values["tp"]) == ("Qwen/Qwen3-14B", 2)
    with pytest.raises(InputError, match="its runtime own is not in the file"):
        read(RUNTIME.partition("---")[2].replace("name: vLLM", "name: pytorch"), tmp_path)


def test_both_sides_of_trtllm_serve_disaggregated_are_pools(tmp_path: Path) -> None:
    launch = read(PAIR, tmp_path)
    assert pools(launch) == [("prefill", 2, 2, 2, 2), ("decode", 1, 4, 1, 4)]
    assert launch.values["disaggregation.max_tokens_in_buffer"] == 4096
    assert all(pool["scheduler"]["gpu_memory_utilization"] == 0.8 for pool in launch.values["pools"])
    assert not launch.unknown
    loads(launch)


def test_a_script_that_starts_both_sides_and_the_proxy_has_them_once(tmp_path: Path) -> None:
    (tmp_path / "pair.yaml").write_text(PAIR)
    commands = (
        "mpirun -n 8 trtllm-serve disaggregated_mpi_worker -c pair.yaml &\n"
        "trtllm-serve disaggregated -c pair.yaml -t 1800 -r 1800\n"
    )
    assert read(commands, tmp_path, "start.sh").values == read(PAIR, tmp_path).values


def test_a_proxy_in_front_of_servers_that_are_started_elsewhere_is_no_server(tmp_path: Path) -> None:
    addresses = (
        "context_servers: {num_instances: 1, urls: [a]}\ngeneration_servers: {num_instances: 1, urls: [b]}"
    )
    (tmp_path / "proxy.yaml").write_text(addresses)
    line = "trtllm-serve Qwen/Qwen3-14B --server_role"
    script = f"{line} CONTEXT &\n{line} GENERATION --tp_size 2 &\ntrtllm-serve disaggregated -c proxy.yaml"
    assert pools(read(script, tmp_path, "start.sh")) == [("prefill", 1, 1, 1, 1), ("decode", 1, 2, 1, 1)]
    gone = read(script.replace("proxy.yaml", "gone.yaml"), tmp_path, "start.sh")
    assert any("gone.yaml is not there" in note for note in gone.notes)
    with pytest.raises(InputError, match="starts no server"):
        read(addresses, tmp_path)


def test_workers_of_a_job_of_srt_slurm_are_pools(tmp_path: Path) -> None:
    launch = read(JOB, tmp_path)
    assert pools(launch) == [("prefill", 2, 4, 4, 4), ("decode", 1, 8, 1, 1)]
    prefill, decode = launch.values["pools"]
    assert prefill["scheduler"]["max_num_batched_tokens"] == 8192
    assert prefill["scheduler"]["receive_interval"] == 10
    assert prefill["latency"]["cuda_graphs"] is False
    assert decode["latency"]["cuda_graph_sizes"] == [1, 2, 4]
    assert launch.values["disaggregation.reserved_decode_tokens"] == 112
    assert (launch.values["engine"], launch.values["model"]) == ("sglang-0.5.9", "Qwen/Qwen3-30B-A3B")
    assert (launch.values["gpu"], launch.unknown) == ("h200", [])
    loads(launch)


def test_variants_of_a_job_are_named_and_its_base_is_read(tmp_path: Path) -> None:
    nested = "base:\n" + "\n".join(f"  {line}" for line in JOB.splitlines())
    launch = read(f"{nested}\noverride_wide:\n  resources: {{decode_workers: 4}}\n", tmp_path)
    assert launch.values == read(JOB, tmp_path).values
    assert any("none of its variants: override_wide" in note for note in launch.notes)


VARIANTS = """
override_wide:
  resources: {decode_workers: 4}
  backend: {sglang_config: {decode: {cuda-graph-bs: null, mem-fraction-static: 0.7}}}
zip_override_sizes:
  name: [a, b]
  backend: {sglang_config: {decode: {max-running-requests: [64, 128], mem-fraction-static: [0.75]}}}
"""


def test_a_variant_of_a_job_is_its_base_with_changes(tmp_path: Path) -> None:
    """Mappings are merged, null drops a key, lists of a zipped variant have a value for each."""
    nested = "base:\n" + "\n".join(f"  {line}" for line in JOB.splitlines())
    path = tmp_path / "job.yaml"
    path.write_text(nested + VARIANTS)
    base, wide, second = (
        read_launch([f"{path}:{each}"]) for each in ("base", "override_wide", "zip_override_sizes[1]")
    )
    assert base.values == read(JOB, tmp_path).values
    assert not any("variants" in note for note in wide.notes)
    assert [pool["count"] for pool in wide.values["pools"]] == [2, 4]
    decode = wide.values["pools"][1]
    assert "cuda_graph_sizes" not in decode.get("latency", {})
    assert decode["scheduler"]["gpu_memory_utilization"] == 0.7
    scheduler = second.values["pools"][1]["scheduler"]
    assert (scheduler["max_num_seqs"], scheduler["gpu_memory_utilization"]) == (128, 0.75)
    for variant, message in {
        "override_none": "no such variant.*base, override_wide, zip_override_sizes",
        "zip_override_sizes": "stands for 2 variants.*sizes.0. to .*sizes.1.",
        "zip_override_sizes[2]": "no such variant",
        "override_wide[0]": "drop the number",
    }.items():
        with pytest.raises(InputError, match=message):
            read_launch([f"{path}:{variant}"])
    (tmp_path / "start.sh").write_text("vllm serve Qwen/Qwen3-8B")
    with pytest.raises(InputError, match="has no variants"):
        read_launch([f"{tmp_path / 'start.sh'}:base"])
    path.write_text(nested + "\nzip_override_odd: {name: [a, b], resources: {decode_workers: [1, 2, 3]}}")
    with pytest.raises(InputError, match="lists of 2 and 3 values"):
        read_launch([f"{path}:zip_override_odd[0]"])


def test_roles_of_a_job_are_its_workers(tmp_path: Path) -> None:
    job = """
engine: sglang
model: {path: Qwen/Qwen3-30B-A3B, container: "lmsysorg/sglang:v0.5.9"}
resources: {gpu_type: h200, gpus_per_node: 8}
roles:
  prefill: {nodes: 1, workers: 2, gpus: 4, args: {tensor-parallel-size: 4, chunked-prefill-size: 16384}}
  decode: {nodes: 1, workers: 1, gpus: 8, args: {tensor-parallel-size: 8, disaggregation-mode: decode}}
"""
    launch = read(job, tmp_path)
    assert pools(launch) == [("prefill", 2, 4, 1, 1), ("decode", 1, 8, 1, 1)]
    assert launch.values["engine"] == "sglang-0.5.9"


def test_a_job_of_tensorrt_llm_has_its_options(tmp_path: Path) -> None:
    job = """
model: {path: Qwen/Qwen3-14B, container: "nvcr.io/nvidia/tensorrt-llm/release:1.2.0"}
resources: {gpu_type: b200, agg_workers: 2}
backend:
  type: trtllm
  trtllm_config: {aggregated: {tensor_parallel_size: 2, max_batch_size: 64}}
"""
    values = read(job, tmp_path).values
    assert (values["engine"], values["tp"], values["num_instances"]) == ("trtllm-1.2.0", 2, 2)
    assert values["scheduler.max_num_seqs"] == 64


SET = """
apiVersion: disaggregatedset.x-k8s.io/v1alpha1
kind: DisaggregatedSet
metadata: {name: wide}
spec:
  roles:
  - name: prefill
    replicas: 2
    leaderWorkerTemplate: &template
      size: 2
      workerTemplate:
        spec:
          containers:
          - name: vllm
            image: vllm/vllm-openai:v0.19.0
            command: [/bin/bash, -c]
            args:
            - |-
              START=$(( ${LWS_WORKER_INDEX:-0} * LOCAL ))
              exec vllm serve deepseek-ai/DeepSeek-R1-0528 --enable-expert-parallel -tp $TP_SIZE \\
                -dp $((LWS_GROUP_SIZE * LOCAL)) --data-parallel-address ${LWS_LEADER_ADDRESS} \\
                --data-parallel-start-rank $START --eplb-config '{"num_redundant_experts": "32"}' \\
                # --max-num-seqs 9
            env: [{name: LOCAL, value: "8"}, {name: TP_SIZE, value: "1"}]
            resources: {limits: {nvidia.com/gpu: "8"}}
  - {name: decode, replicas: 1, leaderWorkerTemplate: *template}
"""


def test_a_set_of_groups_of_pods_has_its_roles_and_the_variables_of_its_leaders(tmp_path: Path) -> None:
    launch = read(SET, tmp_path)
    assert pools(launch) == [("prefill", 2, 16, 16, 16), ("decode", 1, 16, 16, 16)]
    assert [pool["redundant_experts"] for pool in launch.values["pools"]] == [32, 32]
    assert not launch.unknown
    assert not any("reserved" in note for note in launch.notes)
