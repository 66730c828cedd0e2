"""Notes on the gateway's settings."""

from __future__ import annotations

from blis_py.config.cluster import GatewaySection


def flow_notes(settings: GatewaySection) -> list[str]:
    """A note on a gateway queue in which no request will ever wait."""
    if not settings.flow_control or settings.saturation_detector != "never":
        return []
    fix = "hold requests back with --saturation-detector utilization or concurrency"
    return [f"flow control without a saturation detector dispatches every request at once: {fix}"]
