"""Engines whose schedulers are compared."""

from __future__ import annotations

from benchmarks.engines.engine import Engine
from benchmarks.engines.vllm import VLLM

ENGINES: dict[str, Engine] = {VLLM.package: VLLM}
"""By package."""
