"""The `--dllm-*` flags of `blis engine`, and the engine for the kind of model that `--model` names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.flags.registered import flags_of
from blis_py.config.diffusion import DllmSection
from blis_py.core.diffusion_request import DenoiseBatch
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays
from engine.cli.options import engine_config

if TYPE_CHECKING:
    from blis_py.cluster.recording.diffusion_recorder import DiffusionInstanceLog, DiffusionRecorder
    from blis_py.cluster.recording.instance_log import InstanceLog
    from blis_py.requests.table import RequestTable
    from engine.config import EngineConfig
    from engine.diffusion.engine import DiffusionEngine
    from engine.diffusion.settings import DllmSettings
    from engine.kinds import Engine

_SIMULATED_TOO = {"config", "fdfo", "in_place_reuse", "re_loop"}
DLLM = (
    Flag("--dllm-algorithm", str, "", "LowConfidence, JointThreshold, TopKPerStep. Default LowConfidence."),
    *(flag for _, flag in flags_of(DllmSection, "Block diffusion") if flag.key in _SIMULATED_TOO),
)
_MAX_SLOTS = 64
"""Default of `--max-num-seqs` for block diffusion: as many blocks of 32 as the default token budget holds."""


def build(flags: Flags) -> Engine:
    """The engine for the model: autoregressive, or for block diffusion with `--dllm-*`.

    Raises:
        InputError: `--dllm-*` with an autoregressive model; a model or settings that cannot work.
    """
    return build_as(*configured(flags))


def configured(flags: Flags) -> tuple[EngineConfig, DllmSettings | None]:
    """The engine's settings, and those of block diffusion where the model is of that kind.

    Where flags are absent, a page then holds whole diffusion blocks, and there are 64 request slots.

    Raises:
        InputError: as `build`.
    """
    from engine.models.config import load_model_config

    config = engine_config(flags)
    block = load_model_config(config.model).mask_block
    given = [flag.name for flag in DLLM if flag.name in flags]
    if block == 1:
        if given:
            fix = "use a block-diffusion model, or drop the flag"
            raise InputError("the model is autoregressive", key=given[0], fix=fix)
        return config, None
    from engine.diffusion.settings import dllm_settings

    settings = dllm_settings(
        flags.get("--dllm-algorithm", "LowConfidence"),
        flags.get("--dllm-config"),
        fdfo=_switch(flags, "dllm-fdfo"),
        reuse_in_place=_switch(flags, "dllm-in-place-reuse"),
        reloop=_switch(flags, "dllm-re-loop"),
    )
    return engine_config(flags, max_num_seqs=_MAX_SLOTS), settings


def build_as(config: EngineConfig, settings: DllmSettings | None) -> Engine:
    """The engine with these settings; autoregressive where there are none of block diffusion."""
    if settings is None:
        from engine.build import build_engine

        return build_engine(config)
    from engine.diffusion.build import build_diffusion_engine

    return build_diffusion_engine(config, settings)


def write_rounds(folder: Path, engine: Engine, table: RequestTable, settings: DllmSettings) -> None:
    """The rounds of every block, and how to replay them."""
    from blis_py.traces import diffusion_rounds as rounds
    from blis_py.traces.tracev2_write import request_numbers

    requests = engine.recorder.log().requests
    number_of = {table.id_of(row): n for row, n in enumerate(request_numbers(table).tolist())}
    measured = zip(requests["id"], requests["block_rounds"], strict=True)
    rounds.write_rounds(folder / rounds.NAME, {number_of[name]: own for name, own in measured})
    rounds.write_workload(
        folder,
        block_tokens=engine.recorder.meta["diffusion"]["block_tokens"],
        algorithm=type(settings.algorithm).__name__,
        parameters=settings.parameters,
    )


def throughput(engine: DiffusionEngine) -> dict[str, Any]:
    """Fields of the result of `bench throughput` beyond those of other engines."""
    counters = engine.scheduler.totals
    return {
        "rounds": counters.rounds,
        "steps_per_block": counters.steps_per_block,
        "committed_tokens_per_step": counters.committed_tokens_per_step,
        "idle_block_rounds": counters.idle_block_rounds,
    }


def recorders(engine: DiffusionEngine, table: RequestTable) -> tuple[DiffusionRecorder, DiffusionInstanceLog]:
    """Those of the simulator."""
    from blis_py.cluster.recording.diffusion_recorder import DiffusionInstanceLog, DiffusionRecorder

    core = engine.scheduler
    recorder = DiffusionRecorder(table, FrontendDelays(), core.diffusion.block_tokens)
    return recorder, DiffusionInstanceLog(recorder, core, record_steps=False)


def note_round(log: InstanceLog, start_ns: int, end_ns: int) -> bool:
    """Note a round; `False` where steps are none."""
    from blis_py.cluster.recording.diffusion_recorder import DiffusionInstanceLog

    if not isinstance(log, DiffusionInstanceLog):
        return False
    log.round(DenoiseBatch(), start_ns, end_ns)
    return True


def _switch(flags: Flags, name: str) -> bool:
    if f"--{name}" in flags and f"--no-{name}" in flags:
        raise InputError(f"contradicts --no-{name}", key=f"--{name}", fix="give one of the two")
    return f"--no-{name}" not in flags
