"""On which GPU, in what state and with which software a figure was measured."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

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


def provenance() -> dict[str, Any]:
    """GPU, driver, clocks and power at this moment, versions, and the commit measured."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        **_nvidia_smi(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "python": platform.python_version(),
        "commit": _output("git", "describe", "--always", "--dirty"),
    }


def _nvidia_smi() -> dict[str, str]:
    """Driver, clocks in MHz, power in W, temperature in °C; empty texts where the tool does not tell."""
    query = ",".join(_FIELDS)
    answer = _output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0")
    values = [value.strip() for value in answer.split(",")] if answer else [""] * len(_FIELDS)
    return dict(zip(_FIELDS, values, strict=False))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
