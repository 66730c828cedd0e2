"""A planned configuration as values of llm-d's charts: modelservice, and the endpoint picker that routes."""

from __future__ import annotations

from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_manifest
from blis_py.planning.emit.autoscaler import autoscaler
from blis_py.planning.emit.fleet import PlannedFleet, gpu_resource, node_selector, one_node, planned_fleet
from blis_py.planning.emit.kubernetes import environment
from blis_py.planning.planned_pools import PORT, PlannedPool
from blis_py.planning.result import Candidate

_SCORERS = {
    "precise-prefix-cache": "precise-prefix-cache-scorer",
    "prefix-affinity": "prefix-cache-scorer",
    "no-hit-lru": "no-hit-lru-scorer",
    "queue-depth": "queue-scorer",
    "kv-utilization": "kv-cache-utilization-scorer",
    "load-aware": "load-aware-scorer",
    "active-requests": "active-request-scorer",
    "running-requests": "running-requests-size-scorer",
}
"""Scorers, and plugins of the endpoint picker."""
_OF_POLICIES = {
    "least-loaded": {"queue-depth": 1.0, "kv-utilization": 1.0},
    "session-affinity": {"prefix-affinity": 1.0},
    "weighted": {"precise-prefix-cache": 2.0, "queue-depth": 1.0, "kv-utilization": 1.0},
}
"""Scorers of policies that name none: the nearest, and those of `weighted`."""
_PLUGINS_FILE = "plan-plugins.yaml"
_SIDECAR = "ghcr.io/llm-d/llm-d-routing-sidecar:v0.4.0"


def files(best: Candidate) -> dict[str, str]:
    """Values of the charts by file name.

    Raises:
        InputError: another engine than vLLM, a server that spans nodes, or other pools than one or a pair.
    """
    fleet = planned_fleet(best, "llm-d", "vllm")
    one_node(fleet, "llm-d")
    sides = {("decode" if pool.role == "both" else pool.role): pool for pool in fleet.pools}
    if len(sides) < len(fleet.pools):
        problem = f"has room for prefill and decode, not for {len(fleet.pools)} pools"
        raise InputError(problem, key="--emit", value="llm-d", fix="use k8s, dynamo or compose")
    model = fleet.pools[0].model
    values: dict[str, Any] = {
        "modelArtifacts": {"name": model, "uri": f"hf://{model}", "authSecretName": "hf-token"},
        "routing": {"servicePort": PORT, "proxy": {"enabled": fleet.apart, "image": _SIDECAR}},
    }
    for side in ("decode", "prefill"):
        pool = sides.get(side)
        values[side] = {"create": False, "replicas": 0} if pool is None else _side(pool)
    picker = {
        "inferenceExtension": {
            "replicas": 1,
            "pluginsConfigFile": _PLUGINS_FILE,
            "pluginsCustomConfig": {_PLUGINS_FILE: dump_manifest(picker_config(fleet))},
        },
        "inferencePool": {
            "targetPorts": [{"number": PORT}],
            "modelServerType": "vllm",
            "modelServers": {"matchLabels": {"llm-d.ai/inferenceServing": "true"}},
        },
    }
    notes = (
        "Values of llm-d-modelservice, released as plan; those of the inferencepool chart are beside it.",
    )
    scaled = [
        autoscaler("vllm", f"plan-llm-d-modelservice-{side}", pool.count) for side, pool in sides.items()
    ]
    return {
        "modelservice-values.yaml": fleet.text(values, notes=notes),
        "inferencepool-values.yaml": dump_manifest(picker),
        "autoscaler.yaml": "---\n".join(map(dump_manifest, scaled)),
    }


def _side(pool: PlannedPool) -> dict[str, Any]:
    config = pool.config
    ranks = config.attention_dp
    own = {
        "name": "vllm",
        "image": pool.image,
        "modelCommand": "vllmServe",
        "args": pool.vllm_arguments(),
        "env": environment(pool)[1:],
        "ports": [{"containerPort": PORT, "name": "metrics", "protocol": "TCP"}],
        "mountModelVolume": True,
        "resources": {part: {gpu_resource(pool): str(config.tp)} for part in ("limits", "requests")},
    }
    found: dict[str, Any] = {
        "create": True,
        "replicas": pool.count,
        "parallelism": {"tensor": max(config.tp // ranks, 1), "data": 1},
        "containers": [{key: value for key, value in own.items() if value != []}],
    }
    selector = node_selector(pool)
    return {**found, "extraConfig": {"nodeSelector": selector}} if selector else found


def picker_config(fleet: PlannedFleet) -> dict[str, Any]:
    """The configuration of the endpoint picker: its plugins, and the weights of its scorers."""
    routing = fleet.best.config.routing
    named = routing.scorers or _OF_POLICIES.get(routing.policy, {})
    weights = {_SCORERS[name]: weight for name, weight in named.items() if name in _SCORERS}
    picker = "max-score-picker" if weights else "random-picker"
    scored = [{"pluginRef": name, "weight": weight} for name, weight in weights.items()]
    plugins = [*weights, picker]
    rest = [*scored, {"pluginRef": picker}]
    profiles = [{"name": "default", "plugins": rest}]
    if fleet.apart:
        plugins += ["prefill-filter", "decode-filter", "prefill-header-handler", "pd-profile-handler"]
        profiles = [
            {"name": side, "plugins": [{"pluginRef": f"{side}-filter"}, *rest]}
            for side in ("prefill", "decode")
        ]
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": name} for name in plugins],
        "schedulingProfiles": profiles,
    }
