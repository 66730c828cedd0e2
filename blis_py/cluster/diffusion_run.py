"""A workload served by one simulated block-diffusion instance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.cluster.diffusion import DiffusionCosts, DiffusionInstance
from blis_py.cluster.diffusion_record import DiffusionRun
from blis_py.cluster.diffusion_steps import DenoiseSteps, draw_rounds, steps_from_mapping
from blis_py.cluster.simulation import requests
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.workload.table import RequestTable

_KEYS = ("kind", "block_size", "steps", "commit_rounds")


@dataclass(frozen=True, slots=True)
class DiffusionWorkload:
    """How the requests of a workload become blocks."""

    steps: DenoiseSteps
    block_tokens: int = 32
    commit_rounds: int = 1
    """Forwards of a block beyond its denoise rounds; see `draw_rounds`."""


def diffusion_workload(
    values: Mapping[str, Any], *, key: str = "", file: str | Path | None = None
) -> DiffusionWorkload:
    """From `{kind: diffusion, block_size: 32, steps: ..., commit_rounds: 1}`; `steps_from_mapping` on steps.

    Raises:
        InputError: with the dotted key of what cannot be.
    """
    prefix = f"{key}." if key else ""
    for name in values:
        if name not in _KEYS:
            fix = f"use {', '.join(_KEYS)}"
            raise InputError("unknown key", file=file, key=prefix + name, fix=fix)
    if values.get("kind") != "diffusion":
        raise InputError("must be diffusion", file=file, key=f"{prefix}kind", value=values.get("kind"))
    counts = {"block_size": 32, "commit_rounds": 1} | {k: values[k] for k in _KEYS if k in values}
    for name, least, most in (("block_size", 1, 4096), ("commit_rounds", 0, 1)):
        value = counts[name]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            problem = f"must be a whole number from {least} to {most}"
            raise InputError(problem, file=file, key=prefix + name, value=value)
    steps = steps_from_mapping(values.get("steps"), key=f"{prefix}steps", file=file)
    return DiffusionWorkload(steps, counts["block_size"], counts["commit_rounds"])


def simulate_diffusion(
    table: RequestTable,
    workload: DiffusionWorkload,
    *,
    scheduler: SchedulerConfig,
    latency: LatencyModel,
    fdfo: bool = True,
    reuse_in_place: bool = True,
    reloop: bool = True,
    costs: DiffusionCosts | None = None,
    seed: int = 42,
    slo_priorities: Mapping[str, int] | None = None,
    single_step: bool = False,
) -> DiffusionRun:
    """Serves `table` on one instance until the last request has ended.

    Args:
        seed: of the step counts, a random stream of their own.
        single_step: ask the scheduler after every round. Slower, same result.

    Raises:
        InputError: settings that cannot work, or an SLO class without a priority.
    """
    core = DiffusionScheduler(scheduler, DiffusionConfig(workload.block_tokens, fdfo, reuse_in_place, reloop))
    asked = [
        DiffusionRequest(
            request.id,
            request.arrival_ns,
            request.prompt_tokens,
            request.output_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
            deadline_ns=request.deadline_ns,
            block_keys=request.block_keys,
            row=request.row,
        )
        for chunk in requests(table, len(table), scheduler.block_size, slo_priorities)
        for request in chunk
    ]
    rounds = draw_rounds(
        asked,
        workload.steps,
        block_tokens=workload.block_tokens,
        seed=seed,
        commit_rounds=workload.commit_rounds,
    )
    return DiffusionInstance(core, latency, rounds, costs, single_step).run(asked)
