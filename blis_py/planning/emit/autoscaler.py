"""An autoscaler for planned servers: no fewer than the plan has, more while requests wait."""

from __future__ import annotations

from typing import Any

_WAITING = {"vllm": "vllm_num_requests_waiting", "sglang": "sglang_num_queue_reqs"}
"""Number of waiting requests, as Prometheus' adapter names the metric of a server."""
_MOST = 2
"""Servers at most, as a multiple of the planned ones."""
_WAIT = "1"
"""Waiting requests for a server, above which there are more of them."""


def autoscaler(engine: str, deployment: str, count: int) -> dict[str, Any] | None:
    """A HorizontalPodAutoscaler of a Deployment; None where the engine has no such metric.

    Args:
        deployment: its name.
        count: planned servers.
    """
    if engine not in _WAITING:
        return None
    target = {"type": "AverageValue", "averageValue": _WAIT}
    metric = {"type": "Pods", "pods": {"metric": {"name": _WAITING[engine]}, "target": target}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": deployment},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment},
            "minReplicas": count,
            "maxReplicas": _MOST * count,
            "metrics": [metric],
        },
    }
