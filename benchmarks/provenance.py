"""Where a figure was measured, so that it can be judged later."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from measure import ROOT

from blis_py import native

_PACKAGES = ("simpy", "numpy", "pandas", "pydantic", "matplotlib")


def provenance(core: int | None) -> dict[str, Any]:
    """Machine, interpreter, packages, and the version of the code; `core` is the one pinned to."""
    return {
        "blis_py": version("blis-py"),
        "commit": _commit(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "pinned_to_one_core": core is not None,
        "native": bool(native.current()),
        "packages": {name: version(name) for name in _PACKAGES},
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _commit() -> str:
    """Abbreviated commit, marked where files differ from it; empty outside a git checkout."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return described.stdout.strip()
