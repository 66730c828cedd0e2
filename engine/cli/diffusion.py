"""The `--dllm-*` flags of `blis engine`, and the engine for the kind of model that `--model` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_py.cli.flag import Flag, Flags
from blis_py.errors import InputError
from engine.cli.options import engine_config

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.diffusion.engine import DiffusionEngine
    from engine.diffusion.settings import DllmSettings
    from engine.engine import LLMEngine

DLLM = (
    Flag("--dllm-algorithm", str, "", "LowConfidence, JointThreshold, TopKPerStep. Default LowConfidence."),
    Flag("--dllm-config", str, "", "Parameters of the algorithm (YAML).", metavar="FILE"),
    Flag("--dllm-fdfo", bool, "", "First done, first out: the default."),
    Flag("--no-dllm-fdfo", bool, "", "A batch runs until all its blocks are final."),
    Flag("--dllm-in-place-reuse", bool, "", hidden=True),
    Flag("--no-dllm-in-place-reuse", bool, "", "An unfinished block gives up its slot after every batch."),
    Flag("--dllm-re-loop", bool, "", hidden=True),
    Flag("--no-dllm-re-loop", bool, "", "Ask the scheduler after every round."),
)
_MOST_SLOTS = 64
"""Default of `--max-num-seqs` for block diffusion: as many blocks of 32 as the default token budget holds."""


def build(flags: Flags) -> LLMEngine | DiffusionEngine:
    """The engine for the model: autoregressive, or for block diffusion with `--dllm-*`.

    Raises:
        InputError: `--dllm-*` with an autoregressive model; a model or settings that cannot work.
    """
    return build_as(*configured(flags))


def configured(flags: Flags) -> tuple[EngineConfig, DllmSettings | None]:
    """The engine's settings, and those of block diffusion where the model is of that kind.

    Where flags are absent, a page then holds one diffusion block, and there are 64 request slots.

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
    return engine_config(flags, block_size=max(block, 16), max_num_seqs=_MOST_SLOTS), settings


def build_as(config: EngineConfig, settings: DllmSettings | None) -> LLMEngine | DiffusionEngine:
    """The engine with these settings; autoregressive where there are none of block diffusion."""
    if settings is None:
        from engine.build import build_engine

        return build_engine(config)
    from engine.diffusion.build import build_diffusion_engine

    return build_diffusion_engine(config, settings)


def _switch(flags: Flags, name: str) -> bool:
    if f"--{name}" in flags and f"--no-{name}" in flags:
        raise InputError(f"contradicts --no-{name}", key=f"--{name}", fix="give one of the two")
    return f"--no-{name}" not in flags
