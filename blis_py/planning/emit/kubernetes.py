"""A planned configuration as resources of Kubernetes: Deployments and Services, a router, an autoscaler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blis_py.files.yaml_files import dump_manifest
from blis_py.planning.emit.autoscaler import autoscaler
from blis_py.planning.emit.fleet import (
    PlannedFleet,
    gpu_resource,
    node_selector,
    one_node,
    planned_fleet,
)
from blis_py.planning.emit.routers import (
    PAIR_FILE,
    pair_options,
    router_command,
    router_image,
    router_notes,
)
from blis_py.planning.planned_pools import PORT, PlannedPool
from blis_py.planning.result import Candidate

_START_S, _PERIOD_S = 3600, 10
"""Longest time to load a model, and between two looks at a server."""
_PART_OF = "app.kubernetes.io/part-of"
_COMPONENT = "app.kubernetes.io/component"


def files(best: Candidate) -> dict[str, str]:
    """The manifests by file name.

    Raises:
        InputError: pools of several engines, or a server that spans nodes.
    """
    fleet = planned_fleet(best, "k8s")
    one_node(fleet, "k8s")
    found = {
        "servers.yaml": fleet.text(*_servers(fleet), notes=("Needs a secret hf-token for gated models.",))
    }
    if fleet.apart or sum(pool.count for pool in fleet.pools) > 1:
        text = "---\n".join(map(dump_manifest, _router(fleet)))
        found["router.yaml"] = "\n".join([*(f"# {line}" for line in router_notes(fleet)), text])
    scaled = [autoscaler(fleet.engine, fleet.name_of(pool), pool.count) for pool in fleet.pools]
    if all(scaled):
        found["autoscaler.yaml"] = "---\n".join(map(dump_manifest, scaled))
    return found


def _servers(fleet: PlannedFleet) -> Iterator[dict[str, Any]]:
    options = {name: text for pool in fleet.pools for name, text in pool.options.items()}
    if options:
        yield _resource("v1", "ConfigMap", f"{fleet.name}-options", data=options)
    for pool in fleet.pools:
        yield _deployment(fleet, pool)
        yield _service(fleet.name_of(pool), {"app": fleet.name_of(pool)})


def _resource(version: str, kind: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **content}


def _deployment(fleet: PlannedFleet, pool: PlannedPool) -> dict[str, Any]:
    name = fleet.name_of(pool)
    labels = {"app": name, _PART_OF: fleet.name}
    labels |= {} if pool.role == "both" else {_COMPONENT: pool.role}
    template = {"metadata": {"labels": labels}, "spec": pod_spec(fleet, pool)}
    spec = {"replicas": pool.count, "selector": {"matchLabels": {"app": name}}, "template": template}
    return _resource("apps/v1", "Deployment", name, spec=spec)


def pod_spec(fleet: PlannedFleet, pool: PlannedPool) -> dict[str, Any]:
    """The pod of a server."""
    memory = {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}
    volumes: list[Mapping[str, Any]] = [memory]
    if pool.options:
        volumes.append({"name": "options", "configMap": {"name": f"{fleet.name}-options"}})
    selector = node_selector(pool)
    return {
        "containers": [container(pool)],
        "volumes": volumes,
        **({"nodeSelector": selector} if selector else {}),
    }


def container(pool: PlannedPool) -> dict[str, Any]:
    """The container of a server."""
    look = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": _PERIOD_S}
    words = pool.command(f"/options/{pool.options_file}")
    begin = 3 if pool.engine == "sglang" else 1
    mounts = [{"name": "shared-memory", "mountPath": "/dev/shm"}]
    mounts += [{"name": "options", "mountPath": "/options"}] if pool.options else []
    return {
        "name": pool.engine,
        "image": pool.image,
        "command": words[:begin],
        "args": words[begin:],
        "env": environment(pool),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": {gpu_resource(pool): str(pool.config.tp)}},
        "startupProbe": {**look, "failureThreshold": _START_S // _PERIOD_S},
        "readinessProbe": look,
        "volumeMounts": mounts,
    }


def environment(pool: PlannedPool) -> list[dict[str, Any]]:
    """Variables of a server: the token of the hub, and where its KV is fetched from."""
    secret = {"name": "hf-token", "key": "HF_TOKEN", "optional": True}
    found: list[dict[str, Any]] = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
    if pool.engine == "vllm" and pool.role != "both":
        own = {"fieldRef": {"fieldPath": "status.podIP"}}
        found.append({"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": own})
    return found


def _service(name: str, selector: Mapping[str, str]) -> dict[str, Any]:
    port = {"name": "http", "port": PORT, "targetPort": "http"}
    return _resource("v1", "Service", name, spec={"selector": dict(selector), "ports": [port]})


def _router(fleet: PlannedFleet) -> Iterator[dict[str, Any]]:
    """The router and what it may see; a Service over all servers where TensorRT-LLM has no other."""
    name = f"{fleet.name}-router"
    if fleet.engine == "trtllm" and not fleet.apart:
        yield _service(name, {_PART_OF: fleet.name})
        return
    if fleet.engine == "trtllm":
        hosts = {pool.role: [fleet.name_of(pool)] for pool in fleet.pools}
        yield _resource("v1", "ConfigMap", name, data={PAIR_FILE: dump_manifest(pair_options(fleet, hosts))})
    else:
        yield from _may_see_pods(name)
    labels = {"app": name}
    router = {
        "name": "router",
        "image": router_image(fleet),
        "command": router_command(fleet, _found(fleet)),
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}},
    }
    spec: dict[str, Any] = {"containers": [router]}
    if fleet.engine == "trtllm":
        router["volumeMounts"] = [{"name": "options", "mountPath": "/options"}]
        spec["volumes"] = [{"name": "options", "configMap": {"name": name}}]
    else:
        spec["serviceAccountName"] = name
    template = {"metadata": {"labels": labels}, "spec": spec}
    content = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    yield _resource("apps/v1", "Deployment", name, spec=content)
    yield _service(name, labels)


def _may_see_pods(name: str) -> Iterator[dict[str, Any]]:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    yield _resource("v1", "ServiceAccount", name)
    yield _resource("rbac.authorization.k8s.io/v1", "Role", name, rules=[rule])
    yield _resource(
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        name,
        roleRef={"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name}],
    )


def _found(fleet: PlannedFleet) -> list[str]:
    """Flags by which the router finds the servers: labels of their pods."""
    common = ["--service-discovery", "--service-discovery-port", str(PORT)]
    own = f"{_PART_OF}={fleet.name}"
    if not fleet.apart:
        return [*common, "--selector", own]
    sides = (("--prefill-selector", "prefill"), ("--decode-selector", "decode"))
    return [*common, *(word for flag, role in sides for word in (flag, own, f"{_COMPONENT}={role}"))]
