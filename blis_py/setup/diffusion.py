"""Block-diffusion inputs of the simulation, from a diffusion workload and the `dllm` settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from blis_py.config.diffusion import DllmSection
from blis_py.config.implied import from_preset
from blis_py.config.models import RunConfig
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.setup.demand import Demand

if TYPE_CHECKING:
    from blis_py.cluster.instances.diffusion import BlockDiffusion
    from blis_py.workload.diffusion import DiffusionClient, MeasuredSteps


NAME, TITLE = "diffusion", "block diffusion"


def described(demand: Demand, config: RunConfig) -> Demand:
    """With `dllm.workload`, every request is one of block diffusion, as described there.

    Raises:
        InputError: the workload spec describes its answers itself.
    """
    if config.dllm.workload is None:
        return demand
    if demand.kinds:
        fix = "drop one of the two"
        raise InputError("the workload spec says it already", key="--dllm-workload", fix=fix)
    from blis_py.workload.diffusion import diffusion_client

    file = Path(config.dllm.workload)
    client = diffusion_client(load_mapping(file), file=file)
    return replace(demand, kinds=dict.fromkeys(demand.table.client.names, client))


def scheduler(config: RunConfig, scheduler: SchedulerConfig) -> SchedulerConfig:
    """Rounds of block diffusion are synchronous, whatever a preset says of other engines.

    Raises:
        InputError: asynchronous scheduling is demanded.
    """
    overlapped = scheduler.async_scheduling
    if overlapped and not from_preset(config, "scheduler.async_scheduling", overlapped):
        fix = "drop it: FDFO with re-looping saves the time between rounds instead"
        raise InputError("has no meaning for block diffusion", key="scheduler.async_scheduling", fix=fix)
    return replace(scheduler, async_scheduling=False, late_length_stops=False)


def simulated(
    demand: Demand, config: RunConfig, schedulers: Sequence[SchedulerConfig]
) -> BlockDiffusion | None:
    """Rounds of every block, and the execution of blocks; None for an autoregressive workload.

    Raises:
        InputError: clients of both kinds, or with different block sizes; step counts missing from the
        workload; invalid settings, or settings without effect on an autoregressive workload; a trace of block
        diffusion without step counts.
    """
    settings, clients = config.dllm, _clients(demand)
    if not clients:
        if demand.recorded_kind is not None and demand.recorded_kind[0] == NAME:
            fix = "give --dllm-workload FILE: a run of the engine has it beside the trace, as dllm.yaml"
            problem = "the trace is of block diffusion, and nothing says how its blocks are denoised"
            raise InputError(problem, file=demand.recorded_kind[1], fix=fix)
        _refuse_idle(settings)
        return None
    from blis_py.cluster.instances.diffusion import BlockDiffusion, DiffusionCosts
    from blis_py.core.diffusion_config import DiffusionConfig, check_diffusion_config
    from blis_py.workload.diffusion import table_rounds

    block_tokens = _block_tokens(demand, clients)
    modes = DiffusionConfig(block_tokens, settings.fdfo, settings.in_place_reuse, settings.re_loop)
    for scheduler in schedulers:
        check_diffusion_config(scheduler, modes)
    rounds = table_rounds(demand.table, measured_steps(demand, config), block_tokens, demand.seed)
    costs = DiffusionCosts(round(settings.schedule_us * 1000), round(settings.allocator_call_us * 1000))
    return BlockDiffusion(rounds, modes, costs)


def measured_steps(demand: Demand, config: RunConfig) -> dict[str, MeasuredSteps]:
    """Rounds per block by client, of the algorithm and parameters that the configuration names."""
    settings = config.dllm
    parameters: dict[str, Any] = {} if settings.config is None else load_mapping(Path(settings.config))
    clients = _clients(demand).items()
    return {name: client.choose(settings.algorithm, parameters) for name, client in clients}


def _clients(demand: Demand) -> dict[str, DiffusionClient]:
    return {
        name: cast("DiffusionClient", client) for name, client in demand.kinds.items() if client.kind == NAME
    }


def _refuse_idle(settings: DllmSection) -> None:
    for field in fields(settings):
        value = getattr(settings, field.name)
        if value != field.default:
            fix = "drop it, or say kind: diffusion in the workload spec (or --dllm-workload)"
            key = f"dllm.{field.name}"
            raise InputError("has no use: the workload is autoregressive", key=key, value=value, fix=fix)


def _block_tokens(demand: Demand, of_kind: Mapping[str, DiffusionClient]) -> int:
    clients = [(name, of_kind.get(name)) for name in demand.table.client.names]
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
