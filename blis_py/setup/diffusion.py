"""Block-diffusion inputs of the simulation, from a diffusion workload and the `dllm` settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.config.models import DllmSection
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.setup.asked import Demand

if TYPE_CHECKING:
    from blis_py.cluster.diffusion import BlockDiffusion
    from blis_py.workload.diffusion import DiffusionClient


def block_diffusion(
    demand: Demand, settings: DllmSection, schedulers: Iterable[SchedulerConfig]
) -> BlockDiffusion | None:
    """Rounds of every block, and the execution of blocks; None for an autoregressive workload.

    Raises:
        InputError: clients of both kinds, or with different block sizes; step counts missing from the
        workload; invalid settings, or settings without effect on an autoregressive workload; a trace of block
        diffusion without step counts.
    """
    if not demand.diffusion:
        if demand.diffusion_trace is not None:
            fix = "give --dllm-workload FILE: a run of the engine has it beside the trace, as dllm.yaml"
            problem = "the trace is of block diffusion, and nothing says how its blocks are denoised"
            raise InputError(problem, file=demand.diffusion_trace, fix=fix)
        _refuse_idle(settings)
        return None
    from blis_py.cluster.diffusion import BlockDiffusion, DiffusionCosts
    from blis_py.core.diffusion_config import DiffusionConfig, check_diffusion_config
    from blis_py.workload.diffusion import table_rounds

    block_tokens = _block_tokens(demand)
    config = DiffusionConfig(block_tokens, settings.fdfo, settings.in_place_reuse, settings.re_loop)
    for scheduler in schedulers:
        check_diffusion_config(scheduler, config)
    parameters: dict[str, Any] = {} if settings.config is None else load_mapping(Path(settings.config))
    measured = {
        name: client.choose(settings.algorithm, parameters) for name, client in demand.diffusion.items()
    }
    rounds = table_rounds(demand.table, measured, block_tokens, demand.seed)
    costs = DiffusionCosts(round(settings.schedule_us * 1000), round(settings.allocator_call_us * 1000))
    return BlockDiffusion(rounds, config, costs)


def _refuse_idle(settings: DllmSection) -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            fix = "drop it, or say kind: diffusion in the workload spec (or --dllm-workload)"
            key = f"dllm.{field.name}"
            raise InputError("has no use: the workload is autoregressive", key=key, value=value, fix=fix)


def _block_tokens(demand: Demand) -> int:
    clients: list[tuple[str, DiffusionClient | None]] = [
        (name, demand.diffusion.get(name)) for name in demand.table.client.names
    ]
    plain = next((name for name, client in clients if client is None), None)
    name, first = next((name, client) for name, client in clients if client is not None)
    if plain is not None:
        raise InputError(
            f"{name} fills blocks by diffusion, {plain} is autoregressive: no instance serves both",
            key="clients",
            fix="say kind: diffusion for all clients or for none, and simulate the others by themselves",
        )
    for other, client in clients:
        if client is not None and client.block_tokens != first.block_tokens:
            raise InputError(
                f"{name} has blocks of {first.block_tokens} tokens, {other} of {client.block_tokens}",
                key="block_size",
                fix="a model has one block size: use the same for all clients",
            )
    return first.block_tokens
