"""The router in front of planned servers, as the command of one that exists."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.planning.emit.fleet import PlannedFleet
from blis_py.planning.planned_pools import PORT

_POLICIES = {
    "round-robin": "round_robin",
    "random": "random",
    "power-of-two": "power_of_two",
    "least-loaded": "power_of_two",
    "session-affinity": "consistent_hash",
    "weighted": "cache_aware",
    "dynamo": "cache_aware",
}
"""Routing policies, and the nearest one of vLLM's and SGLang's routers."""
_SAME = ("round-robin", "random", "power-of-two")
_SGLANG_ROUTER = "lmsysorg/sgl-model-gateway:v0.3.2"
_PYTHON = "python:3.12-slim"
PAIR_FILE = "trtllm-pair.yaml"
"""File of `trtllm-serve disaggregated`, which stands in front of prefill and decode."""


def router_image(fleet: PlannedFleet) -> str:
    """The image that the router runs in."""
    if fleet.engine == "trtllm":
        return fleet.pools[0].image
    return _SGLANG_ROUTER if fleet.engine == "sglang" else _PYTHON


def router_policy(fleet: PlannedFleet) -> str:
    """The policy of the router that is the simulated one, or nearest to it."""
    return _POLICIES.get(fleet.best.config.routing.policy, "round_robin")


def router_notes(fleet: PlannedFleet) -> list[str]:
    """Lines on what the router does otherwise than was simulated."""
    own, alone = fleet.best.config.routing.policy, len(fleet.pools) == 1 and fleet.pools[0].count == 1
    if own in _SAME or alone:
        return []
    if fleet.engine == "trtllm":
        return [f"the router simulated is {own}; a Service chooses at random"] if own != "random" else []
    return [f"the router simulated is {own}; {router_policy(fleet)} is the nearest of this one"]


def router_command(fleet: PlannedFleet, found: Sequence[str]) -> list[str]:
    """The command of the router.

    Args:
        found: flags that say where the servers are.
    """
    if fleet.engine == "trtllm":
        return ["trtllm-serve", "disaggregated", "-c", f"/options/{PAIR_FILE}"]
    policy = router_policy(fleet)
    if fleet.engine == "sglang":
        policy = "cache_aware" if policy == "consistent_hash" else policy
        apart = ["--pd-disaggregation"] if fleet.apart else []
        words = ["python3", "-m", "sglang_router.launch_router", *apart, *found, "--policy", policy]
        return [*words, "--host", "0.0.0.0", "--port", str(PORT)]
    apart = ["--vllm-pd-disaggregation"] if fleet.apart else []
    words = ["exec vllm-router", *apart, *found, "--policy", policy, "--host 0.0.0.0", f"--port {PORT}"]
    return ["sh", "-c", f"pip install --quiet vllm-router && {' '.join(words)}"]


def pair_options(fleet: PlannedFleet, host_of: dict[str, list[str]]) -> dict[str, object]:
    """The file of `trtllm-serve disaggregated`: addresses of both sides.

    Args:
        host_of: hosts of the servers by role.
    """
    sides = {"context_servers": "prefill", "generation_servers": "decode"}
    found: dict[str, object] = {"hostname": "0.0.0.0", "port": PORT}
    for key, role in sides.items():
        urls = [f"{host}:{PORT}" for host in host_of[role]]
        found[key] = {"num_instances": len(urls), "urls": urls}
    return found
