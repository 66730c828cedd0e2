"""Graphs of Dynamo: services with workers for prefill, decode, or both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from blis_py.launch.gpu_labels import gpu_of_node
from blis_py.launch.manifests.containers import container_of, count, gpus_of, mapping, sequence, servers_in
from blis_py.launch.scripts import LaunchedServers, ScriptContext


def servers_of_graph(data: Mapping[str, Any], context: ScriptContext) -> LaunchedServers:
    """The workers of a graph; its other services start no engine."""
    spec = mapping(data.get("spec"))
    services = mapping(spec.get("services")) or {"": spec}
    found = LaunchedServers()
    for name, service in services.items():
        own = replace(context, name=f"{context.name}: {name}" if name else context.name)
        found.add(_of_service(str(name), mapping(service), spec, own))
    if any(server.role == "prefill" for server in found.servers):
        for server in found.servers:
            server.role = server.role or "decode"
    return found


def _of_service(
    name: str, service: Mapping[str, Any], spec: Mapping[str, Any], context: ScriptContext
) -> LaunchedServers:
    pod = mapping(service.get("extraPodSpec"))
    shared = [*sequence(spec.get("envs")), *sequence(service.get("envs"))]
    main = dict(mapping(pod.get("mainContainer")))
    main["env"] = [*shared, *sequence(main.get("env"))]
    container = container_of(main)
    found = servers_in(container, context)
    nodes = count(mapping(service.get("multinode")).get("nodeCount"))
    gpus = gpus_of(mapping(service.get("resources"))) or container.gpus
    gpu, label = gpu_of_node(mapping(pod.get("nodeSelector")))
    replicas = count(service.get("replicas"))
    found.servers = found.servers if replicas else []
    for server in found.servers:
        server.count, server.gpus, server.gpu = replicas, gpus * nodes, gpu
        server.role = _role(f"{service.get('subComponentType', '')} {name}", server.words)
    if found.servers and label and not gpu:
        found.notes.append(f"{context.name}: its GPU is {label}, which is not bundled; give --gpu")
    return found


def _role(name: str, words: list[str]) -> str:
    """The phase of a worker, by its flags or else its name; empty = both."""
    flags = " ".join(words).lower()
    for role in ("prefill", "decode"):
        if f"--is-{role}-worker" in flags or f"mode {role}" in flags or f"mode={role}" in flags:
            return role
    return next((role for role in ("prefill", "decode") if role in name.lower()), "")
