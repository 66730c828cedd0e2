"""Workloads of Kubernetes: Deployment, StatefulSet, Pod, Job, LeaderWorkerSet, DisaggregatedSet."""

from __future__ import annotations

from collections.abc import Mapping
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

_WORKLOADS = ("Deployment", "StatefulSet", "ReplicaSet", "Job", "DaemonSet", "Rollout")
ROLE_LABELS = ("llm-d.ai/role", "role", "app.kubernetes.io/component")


def servers_of_workload(data: Mapping[str, Any], context: ScriptContext) -> LaunchedServers | None:
    """The servers of a workload; None for resources that start no container."""
    kind, spec = data.get("kind"), mapping(data.get("spec"))
    name = str(mapping(data.get("metadata")).get("name", kind))
    own = replace(context, name=f"{context.name}: {name}")
    if kind == "Pod":
        return servers_of_pod(spec, mapping(mapping(data.get("metadata")).get("labels")), 1, own)
    if kind in _WORKLOADS:
        replicas = count(spec.get("replicas"))
        return _of_template(mapping(spec.get("template")), replicas, own)
    if kind == "LeaderWorkerSet":
        return _of_groups(spec, own)
    if kind == "DisaggregatedSet":
        found = LaunchedServers()
        for role in map(mapping, sequence(spec.get("roles"))):
            side = _of_groups(role, replace(own, name=f"{own.name}: {role.get('name')}"))
            for server in side.servers:
                server.role = server.role or _named_role(str(role.get("name", "")))
            found.add(side)
        return found
    return None


def _named_role(name: str) -> str:
    return next((role for role in ("prefill", "decode") if role in name), "")


def _of_groups(spec: Mapping[str, Any], context: ScriptContext) -> LaunchedServers:
    """The servers of groups of pods, one a group, which starts on its leader."""
    group = mapping(spec.get("leaderWorkerTemplate"))
    template = mapping(group.get("leaderTemplate")) or mapping(group.get("workerTemplate"))
    size = count(group.get("size"))
    leader = {"LWS_GROUP_SIZE": str(size), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader"}
    own = replace(context, environment={**leader, **context.environment})
    found = _of_template(template, count(spec.get("replicas")), own)
    for server in found.servers:
        server.gpus *= size
    return found


def _of_template(template: Mapping[str, Any], replicas: int, context: ScriptContext) -> LaunchedServers:
    labels = mapping(mapping(template.get("metadata")).get("labels"))
    return servers_of_pod(mapping(template.get("spec")), labels, replicas, context)


def servers_of_pod(
    spec: Mapping[str, Any], labels: Mapping[str, Any], replicas: int, context: ScriptContext
) -> LaunchedServers:
    """The servers of alike pods."""
    found = LaunchedServers()
    for each in sequence(spec.get("containers")):
        found.add(servers_of_container(container_of(mapping(each)), spec, replicas, context))
    role = next((str(labels[key]) for key in ROLE_LABELS if labels.get(key) in ("prefill", "decode")), "")
    for server in found.servers:
        server.role = role
    return found


def servers_of_container(
    container: PodContainer, spec: Mapping[str, Any], replicas: int, context: ScriptContext
) -> LaunchedServers:
    """The servers of a container of alike pods with this specification."""
    found = servers_in(container, context)
    found.servers = found.servers if replicas else []
    gpu, label = gpu_of_node(_node_labels(spec))
    for server in found.servers:
        server.count, server.gpu, server.gpus = replicas, gpu, container.gpus
    if found.servers and label and not gpu:
        found.notes.append(f"{context.name}: its GPU is {label}, which is not bundled; give --gpu")
    return found


def _node_labels(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Labels that the node of a pod must have."""
    labels = dict(mapping(spec.get("nodeSelector")))
    affinity = mapping(mapping(spec.get("affinity")).get("nodeAffinity"))
    required = mapping(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    for term in sequence(required.get("nodeSelectorTerms")):
        for each in sequence(mapping(term).get("matchExpressions")):
            if mapping(each).get("operator") == "In":
                labels.setdefault(str(each["key"]), list(sequence(each.get("values"))))
    return labels
