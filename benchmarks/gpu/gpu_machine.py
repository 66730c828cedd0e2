"""On which GPU, in what state and with which software a figure was measured."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from engine.profile.provenance import processor
from engine.revision import revision

_FIELDS = (
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "clocks_event_reasons.active",
)
_PACKAGES = ("numpy", "triton", "scipy")


def provenance(device: str) -> dict[str, Any]:
    """Device, driver, clocks and power at this moment, versions, and the revision measured.

    `gpu` is the device's name; `cpu` says that these are no figures of a GPU.
    """
    return {
        **(_gpu() if device == "cuda" else _cpu()),
        "torch": torch.__version__,
        **{name: _version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "revision": revision(),
    }


def state() -> dict[str, str]:
    """Driver, clocks in MHz, power in W, temperature in °C; empty texts where the tool does not tell."""
    query = ",".join(_FIELDS)
    answer = output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0")
    values = [value.strip() for value in answer.split(",")] if answer else [""] * len(_FIELDS)
    return dict(zip(_FIELDS, values, strict=False))


def output(*command: str) -> str:
    """What a command prints; nothing where there is no such command or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        **state(),
        "cuda": torch.version.cuda,
    }


def _cpu() -> dict[str, Any]:
    return {"gpu": "cpu", "processor": processor(), "cores": os.cpu_count()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
