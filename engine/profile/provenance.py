"""Machine, state and software of a measurement."""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from blis_py.errors import InputError
from blis_py.files.profiles import find_profile
from blis_py.models.hf_config import ConfigFile
from engine.models.config import find_config
from engine.revision import revision

_CLOCKS = {"sm": "clocks.sm", "sm_max": "clocks.max.sm", "memory": "clocks.mem"}


def machine(device: torch.device) -> dict[str, Any]:
    """Device, clocks, driver, versions and commit; unknown entries are absent."""
    known: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "device_kind": device.type,
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "engine_commit": revision(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    if device.type == "cuda":
        known |= {"cuda": torch.version.cuda, **_nvidia_smi()}
    else:
        known["threads"] = torch.get_num_threads()
    return {name: value for name, value in known.items() if value not in ("", None)}


def model_facts(model: str) -> dict[str, Any]:
    """Name, configuration and a hash of the configuration of a model.

    Raises:
        InputError: unknown model.
    """
    config = dict(ConfigFile.read(find_config(model)).values)
    text = json.dumps(config, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return {"model": model_name(model), "model_config": config, "model_hash": digest}


def model_name(model: str) -> str:
    """Name of a model in a profile: its bundled name, or the end of its path.

    >>> model_name("engine/tiny/checkpoints/ar"), model_name("/models/Qwen3-8B/config.json")
    ('tiny-ar', 'qwen3-8b')
    """
    path = Path(model)
    parts = [part for part in path.parts if part != "config.json"]
    if len(parts) >= 3 and parts[-2] == "checkpoints":
        return _slug(f"{parts[-3]}-{parts[-1]}")
    return _slug(parts[-1].removesuffix(".json") if parts else model)


def device_name(known: Mapping[str, Any]) -> str:
    """Name of a device in a path: `cpu`, the name of its datasheet, or its own in plain letters."""
    if known["device_kind"] == "cpu":
        return "cpu"
    try:
        return find_profile("gpus", known["device"]).stem
    except InputError:
        return _slug(known["device"])


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def processor() -> str:
    """The CPU model, as reported by the system."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "cpu"


def _nvidia_smi() -> dict[str, Any]:
    query = ",".join(("driver_version", *_CLOCKS.values()))
    answer = _output("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits", "--id=0")
    driver, *clocks = [value.strip() for value in answer.split(",")]
    clocked = zip(_CLOCKS, clocks, strict=False)
    return {"driver": driver, "clocks_mhz": {name: int(value) for name, value in clocked if value.isdigit()}}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _output(*command: str) -> str:
    """Output of a command; empty if it does not exist or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
