"""Block diffusion in a step log: the execution of blocks, and their rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from blis_py.calibrate.recorded import RecordedRun, request_ids
from blis_py.cluster.instances.diffusion import BlockDiffusion, DiffusionCosts
from blis_py.cluster.instances.kinds import KindOfRequests
from blis_py.core.blocks import block_count
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.errors import InputError
from blis_py.traces.steplog import StepLog

Rounds = Mapping[int, Sequence[int]]
"""Forward passes of each block, by request id (see `recorded.request_ids`)."""


@dataclass(frozen=True, slots=True)
class RecordedBlocks:
    """The block-diffusion part of a run."""

    config: DiffusionConfig
    rounds: Rounds
    costs: DiffusionCosts = field(default_factory=DiffusionCosts)


def blocks_of(kind: KindOfRequests, numbers: Sequence[int]) -> RecordedBlocks:
    """Those of a simulation of the requests of these ids."""
    assert isinstance(kind, BlockDiffusion)
    return RecordedBlocks(kind.config, dict(zip(numbers, kind.rounds, strict=True)), kind.costs)


def of_blocks(log: StepLog) -> bool:
    """Whether it is the log of a block-diffusion engine."""
    return log.kind == "diffusion" or "block_rounds" in log.requests


def diffusion_config(log: StepLog) -> DiffusionConfig:
    """The engine's execution settings of blocks.

    Raises:
        InputError: the log lacks them, or contains an unsupported one.
    """
    settings = log.meta.get("diffusion")
    if not isinstance(settings, dict) or "block_rounds" not in log.requests:
        fix = "give the log of a block-diffusion engine"
        raise InputError("the step log is not one of block diffusion", key="diffusion", fix=fix)
    unknown = sorted(set(settings) - {field.name for field in fields(DiffusionConfig)})
    if unknown:
        raise InputError("unknown setting in the step log", key=f"diffusion.{unknown[0]}")
    return DiffusionConfig(**settings)


def recorded_blocks(log: StepLog) -> RecordedBlocks:
    """The engine's execution of blocks, and the rounds of those that became final."""
    rounds = zip(request_ids(log).tolist(), log.requests["block_rounds"], strict=True)
    return RecordedBlocks(diffusion_config(log), dict(rounds))


def rounds_of_each(
    log: StepLog, recorded: Sequence[RecordedRun], blocks: RecordedBlocks, max_model_len: int
) -> list[list[int]]:
    """The rounds of all possible blocks of the requests, by row.

    Unknown rounds are taken from the engine, and if that lacks them too, from the mean of all known ones.
    """
    own = recorded_blocks(log).rounds
    known = [n for each in own.values() for n in each]
    mean = max(round(sum(known) / len(known)), 1) if known else 1
    size, result = blocks.config.block_tokens, []
    for number, one in zip(request_ids(log).tolist(), recorded, strict=True):
        request = one.request
        longest = request.output_tokens or request.max_tokens or max_model_len
        count = block_count(request.prompt_tokens % size + longest, size)
        given = [*blocks.rounds.get(number, ())][:count]
        given += own[number][len(given) : count]
        result.append([*given, *[mean] * (count - len(given))])
    return result


def check_kinds(engine: RecordedBlocks | None, simulated: RecordedBlocks | None) -> None:
    """
    Raises:
        InputError: one of the two runs is of block diffusion and the other is not.
    """
    if engine is not None and simulated is None:
        fix = "simulate the requests with --dllm-workload RUN_DIR/dllm.yaml"
        raise InputError("the measured run is of block diffusion, the simulated one is not", fix=fix)
    if simulated is not None and engine is None:
        fix = "simulate autoregressive requests, as the engine served"
        raise InputError("the simulated run is of block diffusion, the measured one is not", fix=fix)
