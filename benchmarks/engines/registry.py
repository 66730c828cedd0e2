"""Engines whose schedulers are compared."""

from __future__ import annotations

from benchmarks.engines.engine import Engine
from benchmarks.engines.sglang import SGLANG
from benchmarks.engines.vllm import VLLM

ENGINES: dict[str, Engine] = {engine.package: engine for engine in (VLLM, SGLANG)}
"""By package."""
