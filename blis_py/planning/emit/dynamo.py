"""A planned configuration as a graph of Dynamo: a front end that routes, and workers."""

from __future__ import annotations

from typing import Any

from blis_py.planning.emit.fleet import PlannedFleet, node_selector, nodes_of, planned_fleet
from blis_py.planning.emit.kubernetes import environment
from blis_py.planning.planned_pools import PlannedPool
from blis_py.planning.result import Candidate

_IMAGES = {"vllm": "vllm-runtime", "sglang": "sglang-runtime", "trtllm": "tensorrtllm-runtime"}
_RELEASE = "1.0.1"
"""Release of Dynamo, whose images have engines of certain releases: the simulated one may be another."""
_ROUTERS = {"round-robin": "round-robin", "random": "random"}
"""Modes of the front end by routing policy; else by the KV that workers have."""
_SECRET = "hf-token"


def files(best: Candidate) -> dict[str, str]:
    """The manifest.

    Raises:
        InputError: pools of several engines.
    """
    fleet = planned_fleet(best, "dynamo")
    image = f"nvcr.io/nvidia/ai-dynamo/{_IMAGES[fleet.engine]}:{_RELEASE}"
    services = {"Frontend": _front_end(fleet, image)}
    services |= {_service_name(pool): _worker(pool, image) for pool in fleet.pools}
    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": fleet.name},
        "spec": {"backendFramework": fleet.engine, "services": services},
    }
    release = fleet.pools[0].image.rpartition(":")[2].removeprefix("v")
    notes = (
        f"Simulated is release {release} of the engine: take an image of Dynamo that has it.",
        "Needs a secret hf-token. Dynamo's planner or a HorizontalPodAutoscaler scales the adapters.",
    )
    return {"graph.yaml": fleet.text(graph, notes=notes)}


def _service_name(pool: PlannedPool) -> str:
    return {"prefill": "PrefillWorker", "decode": "DecodeWorker"}.get(pool.name, f"{pool.name.title()}Worker")


def _front_end(fleet: PlannedFleet, image: str) -> dict[str, Any]:
    mode = _ROUTERS.get(fleet.best.config.routing.policy, "kv")
    return {
        "componentType": "frontend",
        "replicas": 1,
        "envs": [{"name": "DYN_ROUTER_MODE", "value": mode}],
        "extraPodSpec": {"mainContainer": {"image": image}},
    }


def _worker(pool: PlannedPool, image: str) -> dict[str, Any]:
    nodes = nodes_of(pool)
    pod: dict[str, Any] = {
        "mainContainer": {
            "image": image,
            "command": ["python3", "-m", f"dynamo.{pool.engine}"],
            "args": _arguments(pool),
            "env": environment(pool)[1:],
        }
    }
    if pool.options:
        pod["mainContainer"] |= {"command": ["sh", "-c"], "args": [_script(pool)]}
    if not pod["mainContainer"]["env"]:
        del pod["mainContainer"]["env"]
    selector = node_selector(pool)
    if selector:
        pod["nodeSelector"] = selector
    found: dict[str, Any] = {
        "componentType": "worker",
        "envFromSecret": _SECRET,
        "replicas": pool.count,
        "scalingAdapter": {"enabled": True},
        "resources": {"limits": {"gpu": str(pool.config.tp // nodes)}},
        "extraPodSpec": pod,
    }
    if pool.role != "both":
        found["subComponentType"] = pool.role
    if nodes > 1:
        found["multinode"] = {"nodeCount": nodes}
    return found


def _arguments(pool: PlannedPool) -> list[str]:
    """Arguments of the worker: those of the engine's own server."""
    if pool.engine == "vllm":
        role = {"prefill": ["--is-prefill-worker"], "decode": ["--is-decode-worker"]}.get(pool.role, [])
        return ["--model", pool.model, *pool.vllm_arguments(), *role]
    words = pool.command(port=False)
    return words[3:] if pool.engine == "sglang" else words[1:]


def _script(pool: PlannedPool) -> str:
    """A script that writes the file of options and starts a worker of TensorRT-LLM."""
    (file,) = pool.options
    role = {"prefill": " --disaggregation-mode prefill", "decode": " --disaggregation-mode decode"}
    command = f"python3 -m dynamo.trtllm --model-path {pool.model} --extra-engine-args {file}"
    return f"cat > {file} <<'EOF'\n{_all_options(pool)}EOF\nexec {command}{role.get(pool.role, '')}"


def _all_options(pool: PlannedPool) -> str:
    """The file of options, with what `trtllm-serve` has as flags."""
    (text,) = pool.options.values()
    config, served = pool.config, pool.config.scheduler
    lines = [
        "backend: pytorch",
        f"tensor_parallel_size: {config.tp}",
        f"moe_expert_parallel_size: {config.ep}",
        f"max_batch_size: {served.max_num_seqs}",
        f"max_num_tokens: {served.max_num_batched_tokens}",
    ]
    lines += [f"max_seq_len: {served.max_model_len}"] if served.max_model_len is not None else []
    share = f"  free_gpu_memory_fraction: {served.gpu_memory_utilization:g}\n"
    head = "kv_cache_config:\n"
    return "\n".join([*lines, text.replace(head, head + share, 1)])
