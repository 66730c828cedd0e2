"""Commands of the engine by kind of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.cli import diffusion

if TYPE_CHECKING:
    from pathlib import Path

    from blis_py.cluster.recording.instance_log import InstanceLog
    from blis_py.cluster.recording.recorder import Recorder
    from blis_py.requests.table import RequestTable
    from engine.diffusion.settings import DllmSettings
    from engine.kinds import Engine, EngineInBlocks

    KindSettings = DllmSettings

GROUPS = (("Block diffusion", diffusion.DLLM),)
"""Flags, by heading."""
NAME, TITLE = "diffusion", "block diffusion"
build, build_as, configured = diffusion.build, diffusion.build_as, diffusion.configured


def name_of(settings: KindSettings | None) -> str | None:
    """The kind of requests that an engine of these settings serves; `None` = autoregressive."""
    return None if settings is None else NAME


def write_files(folder: Path, engine: Engine, table: RequestTable, settings: KindSettings | None) -> None:
    """Files of a run beside those that every run has."""
    if settings is not None:
        diffusion.write_rounds(folder, engine, table, settings)


def throughput(engine: EngineInBlocks) -> dict[str, Any]:
    """Fields of the result of `bench throughput` beyond those of other engines."""
    return {NAME: diffusion.throughput(engine)}


def recorders(engine: EngineInBlocks, table: RequestTable) -> tuple[Recorder, InstanceLog]:
    """Those of the simulator."""
    return diffusion.recorders(engine, table)


def note_step(log: InstanceLog, start_ns: int, end_ns: int) -> bool:
    """Note a step as its kind of requests has it; `False` = it is one of autoregressive requests."""
    return diffusion.note_round(log, start_ns, end_ns)
