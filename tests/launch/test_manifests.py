"""Manifests of Kubernetes, compose, llm-d and Dynamo, beyond the fixtures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml
from blis_py.launch.gpu_labels import gpu_of, gpu_of_node
from blis_py.launch.reader import Launch, read_launch

IMAGE = "vllm/vllm-openai:v0.15.1"
SERVER = {"name": "server", "image": IMAGE, "args": ["--model", "Qwen/Qwen3-8B"]}


def read(tmp_path: Path, *documents: dict[str, Any] | str, **variables: str) -> Launch:
    path = tmp_path / "manifest.yaml"
    texts = [each if isinstance(each, str) else dump_yaml(each) for each in documents]
    path.write_text("---\n".join(texts), encoding="utf-8")
    return read_launch([str(path)], variables)


def pod(container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": "one"}, "spec": {"containers": [container], **spec}}


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("NVIDIA-H100-80GB-HBM3", "h100"),
        ("NVIDIA-H200", "h200"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "a100-80"),
        ("nvidia-h100-80gb", "h100"),
        ("nvidia-l4", "l4"),
        ("NVIDIA-B200", "b200"),
        ("NVIDIA-L40S", "l40s"),
        ("NVIDIA-V100", None),
    ],
)
def test_a_product_label_is_a_bundled_gpu(name: str, gpu: str | None) -> None:
    assert gpu_of(name) == gpu


def test_a_type_of_machine_is_its_gpu() -> None:
    assert gpu_of_node({"node.kubernetes.io/instance-type": "p5en.48xlarge"})[0] == "h200"
    assert gpu_of_node({"node.kubernetes.io/instance-type": "p5.48xlarge"})[0] == "h100"
    assert gpu_of_node({"node.kubernetes.io/instance-type": "g5.12xlarge"})[0] == "a10g"
    assert gpu_of_node({"node.kubernetes.io/instance-type": "m5.large", "disk": "ssd"}) == ("", "")


def test_an_image_without_a_command_has_its_own(tmp_path: Path) -> None:
    launch = read(tmp_path, pod(SERVER))
    assert (launch.values["engine"], launch.values["model"]) == ("vllm-0.15.1", "Qwen/Qwen3-8B")


def test_a_gpu_that_is_not_bundled_is_named(tmp_path: Path) -> None:
    launch = read(tmp_path, pod(SERVER, nodeSelector={"nvidia.com/gpu.product": "NVIDIA-V100"}))
    assert "gpu" not in launch.values
    assert any("its GPU is NVIDIA-V100, which is not bundled; give --gpu" in note for note in launch.notes)


def test_more_gpus_by_flags_than_reserved_are_named(tmp_path: Path) -> None:
    container = {**SERVER, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    container["args"] = [*SERVER["args"], "--tensor-parallel-size=4"]
    assert any("4 GPUs by its flags, and 1 reserved" in note for note in read(tmp_path, pod(container)).notes)


def test_variables_of_a_container_are_replaced_and_secrets_stay_open(tmp_path: Path) -> None:
    environment = [{"name": "SEQS", "value": "64"}, {"name": "KEY", "valueFrom": {"secretKeyRef": {}}}]
    container = {**SERVER, "env": environment}
    container["args"] = [*SERVER["args"], "--max-num-seqs", "$(SEQS)", "--api-key", "$(KEY)"]
    assert read(tmp_path, pod(container)).values["scheduler.max_num_seqs"] == 64
    container["args"] = [*SERVER["args"], "--max-num-seqs", "$(KEY)"]
    with pytest.raises(InputError, match="has a value that only a run of the script has"):
        read(tmp_path, pod(container))


def test_no_replicas_are_no_servers(tmp_path: Path) -> None:
    spec = {"replicas": 0, "template": {"spec": {"containers": [SERVER]}}}
    with pytest.raises(InputError, match="starts no server"):
        read(tmp_path, {"kind": "Deployment", "spec": spec})


def test_roles_of_pods_are_those_of_their_labels(tmp_path: Path) -> None:
    both = []
    for role in ("decode", "prefill"):
        template = {"metadata": {"labels": {"llm-d.ai/role": role}}, "spec": {"containers": [SERVER]}}
        both.append({"kind": "Deployment", "metadata": {"name": role}, "spec": {"template": template}})
    assert [pool["role"] for pool in read(tmp_path, *both).values["pools"]] == ["prefill", "decode"]


def test_compose_replaces_variables_and_doubled_dollar_signs(tmp_path: Path) -> None:
    service = {
        "image": "lmsysorg/sglang:v0.5.9",
        "entrypoint": ["python3", "-m", "sglang.launch_server"],
        "command": ["--model-path", "${MODEL:-Qwen/Qwen3-8B}", "--tp", "${TP}", "--api-key", "$$KEY"],
        "scale": 2,
    }
    launch = read(tmp_path, {"services": {"a": service}}, TP="2")
    assert (launch.values["tp"], launch.values["num_instances"]) == (2, 2)
    with pytest.raises(InputError, match="--launch-env TP="):
        read(tmp_path, {"services": {"a": service}})


def test_the_chart_of_llm_d_writes_the_widths_of_its_values(tmp_path: Path) -> None:
    container: dict[str, Any] = {"image": IMAGE, "modelCommand": "custom", "command": ["/bin/sh", "-c"]}
    container["args"] = [
        "exec vllm serve Qwen/Qwen3-30B-A3B -tp ${TP_SIZE} -dp $DP_SIZE --enable-expert-parallel"
    ]
    decode: dict[str, Any] = {
        "replicas": 2,
        "parallelism": {"tensor": 2, "data": 4},
        "containers": [container],
    }
    values = {
        "modelArtifacts": {"uri": "hf://Qwen/Qwen3-30B-A3B"},
        "decode": decode,
        "prefill": {"create": False},
    }
    found = read(tmp_path, values).values
    assert (found["tp"], found["attention_dp"], found["ep"], found["num_instances"]) == (8, 4, 8, 2)
    decode["containers"] = [{"image": IMAGE, "modelCommand": "imageDefault", "args": ["--max-num-seqs", "8"]}]
    found = read(tmp_path, values).values
    assert (found["model"], found["tp"], found["attention_dp"]) == ("Qwen/Qwen3-30B-A3B", 8, 4)


def test_workers_of_a_graph_with_prefill_decode_otherwise(tmp_path: Path) -> None:
    def worker(flag: str) -> dict[str, Any]:
        args = [f"python3 -m dynamo.vllm --model Qwen/Qwen3-8B {flag} 2>&1 | tee log"]
        image = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.0"
        return {"replicas": 2, "extraPodSpec": {"mainContainer": {"image": image, "args": args}}}

    services = {"VllmWorker": worker(""), "OtherWorker": worker("--is-prefill-worker")}
    graph = {"kind": "DynamoGraphDeployment", "spec": {"services": services}}
    pools = read(tmp_path, graph).values["pools"]
    assert [(pool["role"], pool["count"]) for pool in pools] == [("prefill", 2), ("decode", 2)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: Service\nspec: {}\n", "is of no kind that starts servers"),
        ("a: 1\n", "is of no kind that starts servers"),
        ("engine: vllm\nmodel: qwen3-8b\n", "give a configuration of blis with --config"),
        ("spec: {{ .Values.spec }}\n  x: {{ y }}\n", "is a template; write it out first: helm template"),
        ("a: [1\n", "not valid YAML"),
        ("services: {a: {image: busybox, command: 'sleep 1'}}\n", "starts no server"),
        ('services: {a: {image: x, command: "vllm serve \'x"}}\n', "has a command that cannot be split"),
        ("kind: Pod\nspec: {containers: [3, {args: 4, env: 5}]}\n", "starts no server"),
        ("services: 3\n", "is of no kind that starts servers"),
        ("decode: {containers: 4, replicas: x}\n", "starts no server"),
    ],
)
def test_what_is_no_manifest_of_servers_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    assert complaint in str(error.value)
