"""Values of the Helm chart llm-d-modelservice: containers for decode and prefill, and their parallelism."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from blis_py.launch.gpu_labels import gpu_of_node
from blis_py.launch.manifests.containers import (
    PodContainer,
    container_of,
    count,
    mapping,
    sequence,
    servers_in,
)
from blis_py.launch.scripts import LaunchedServers, ScriptContext

_SIDES = ("prefill", "decode")
_TENSOR = ("--tensor-parallel-size", "-tp", "--tensor_parallel_size")
_DATA = ("--data-parallel-size", "-dp", "--data_parallel_size")


def servers_of_values(data: Mapping[str, Any], context: ScriptContext) -> LaunchedServers:
    """The servers of both sides; decode alone does both."""
    on = {side: mapping(data.get(side)) for side in _SIDES}
    on = {
        side: each for side, each in on.items() if each.get("create", bool(each)) is True and _replicas(each)
    }
    found = LaunchedServers()
    for side, values in on.items():
        servers = _of_side(values, data, replace(context, name=f"{context.name}: {side}"))
        for server in servers.servers:
            server.role = side if len(on) > 1 else ""
        found.add(servers)
    return found


def _replicas(values: Mapping[str, Any]) -> int:
    return count(values.get("replicas"))


def _of_side(values: Mapping[str, Any], data: Mapping[str, Any], context: ScriptContext) -> LaunchedServers:
    parallelism = mapping(values.get("parallelism"))
    tensor, ranks = count(parallelism.get("tensor")), count(parallelism.get("data"))
    own = replace(context, environment={"TP_SIZE": str(tensor), "DP_SIZE": str(ranks)})
    found = LaunchedServers()
    for each in sequence(values.get("containers")):
        container = container_of(mapping(each))
        command = mapping(each).get("modelCommand")
        if command in ("vllmServe", "imageDefault"):
            container = _with_command(container, command, _model(data), tensor, ranks)
        servers = servers_in(container, own)
        for server in servers.servers:
            server.gpus = container.gpus * max(count(parallelism.get("workers")), 1)
        found.add(servers)
    gpu, label = gpu_of_node(_labels(values, data))
    for server in found.servers:
        server.count, server.gpu = _replicas(values), gpu
    if label and not gpu:
        found.notes.append(f"{context.name}: its GPU is {label}, which is not bundled; give --gpu")
    return found


def _with_command(container: PodContainer, command: str, model: str, tensor: int, ranks: int) -> PodContainer:
    """The container with the command that the chart writes for it."""
    widths: list[str] = []
    if tensor > 1 and not _has(container.args, _TENSOR):
        widths += ["--tensor-parallel-size", str(tensor)]
    if ranks > 1 and not _has(container.args, _DATA):
        widths += ["--data-parallel-size", str(ranks)]
    if command == "vllmServe":
        return replace(container, command=("vllm", "serve", model), args=(*widths, *container.args))
    named = () if _has(container.args, ("--model",)) else ("--model", model)
    return replace(container, args=(*container.command, *named, *widths, *container.args), command=())


def _has(words: Sequence[str], flags: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in flags for word in words)


def _model(data: Mapping[str, Any]) -> str:
    artifacts = mapping(data.get("modelArtifacts"))
    uri = str(artifacts.get("uri", ""))
    named = artifacts.get("name") or mapping(data.get("routing")).get("modelName")
    return str(named or uri.partition("://")[2])


def _labels(values: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Labels that the nodes of a side must have."""
    labels: dict[str, Any] = {}
    for each in (values, data):
        types = mapping(each.get("acceleratorTypes"))
        if types.get("labelKey"):
            labels.setdefault(str(types["labelKey"]), list(sequence(types.get("labelValues"))))
    extra = mapping(values.get("extraConfig"))
    return {**labels, **mapping(values.get("nodeSelector")), **mapping(extra.get("nodeSelector"))}
