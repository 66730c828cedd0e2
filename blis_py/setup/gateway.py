"""Admission and flow control at the gateway, from their sections of the configuration."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from blis_py.config.cluster import AdmissionSection, GatewaySection

if TYPE_CHECKING:
    from blis_py.cluster.admission_settings import AdmissionSettings
    from blis_py.cluster.flow_settings import FlowSettings


def admission_settings(settings: AdmissionSection) -> AdmissionSettings:
    """Settings of the admission policy."""
    from blis_py.cluster.admission_settings import AdmissionSettings

    return AdmissionSettings(**{f.name: getattr(settings, f.name) for f in fields(AdmissionSettings)})


def flow_settings(settings: GatewaySection) -> FlowSettings | None:
    """Settings of flow control; `None` = no flow control."""
    if not settings.flow_control:
        return None
    from blis_py.cluster.flow_settings import FlowSettings

    tick_us = settings.dispatch_tick_interval_us
    in_ns: dict[str, Any] = {
        "request_ttl_ns": settings.request_ttl_us * 1000,
        "dispatch_tick_interval_ns": None if tick_us is None else tick_us * 1000,
        "slo_targets_ns": {name: target * 1000 for name, target in settings.slo_targets_us.items()},
    }
    alike = [f.name for f in fields(FlowSettings) if f.name not in in_ns]
    return FlowSettings(**{name: getattr(settings, name) for name in alike}, **in_ns)


def flow_notes(settings: GatewaySection) -> list[str]:
    """A note on a gateway queue in which no request will ever wait."""
    if not settings.flow_control or settings.saturation_detector != "never":
        return []
    fix = "hold requests back with --saturation-detector utilization or concurrency"
    return [f"flow control without a saturation detector dispatches every request at once: {fix}"]
