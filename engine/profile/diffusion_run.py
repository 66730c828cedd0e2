"""Profile of a block-diffusion model: rounds, and how many of them blocks take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.diffusion.blocks import Algorithm
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.settings import DllmSettings
from engine.profile import diffusion_rounds
from engine.profile._loaded import Loaded
from engine.profile.campaign import Bench, Progress
from engine.profile.diffusion import ONE_BY_ONE, RoundBench
from engine.profile.diffusion_plan import plan_rounds, sentinel_round
from engine.profile.shapes import Grid

_SMALL_CACHE: dict[str, Any] = {
    "num_kv_blocks": None,
    "max_model_len": None,
    "kv_cache_memory_bytes": 64 << 20,
}
"""For answering prompts beside the cache that was measured with."""


def bench(loaded: Loaded, grid: Grid) -> tuple[Bench[Any], list[Any], Any]:
    """Bench, shapes, and sentinel."""
    rounds = RoundBench(engine_with(loaded, ONE_BY_ONE), loaded.prompts(), loaded.experts)
    planned = plan_rounds(rounds.limits, rounds.block, grid)
    return rounds, planned, sentinel_round(planned)


def count_rounds(loaded: Loaded, prompts: int, path: Path, progress: Progress) -> None:
    """Counted once: the same weights give the same answers."""
    if path.exists():
        return
    small = replace(loaded, config=replace(loaded.config, enforce_eager=True, **_SMALL_CACHE))

    def counted(done: int, total: int) -> None:
        progress("answering", done, total)

    seed = loaded.config.seed
    answers = diffusion_rounds.count_rounds(
        lambda algorithm: engine_with(small, algorithm), prompts, seed=seed, progress=counted
    )
    diffusion_rounds.write_rounds(answers, path)


def engine_with(loaded: Loaded, algorithm: Algorithm) -> DiffusionEngine:
    """An engine around the model."""
    return build_diffusion_engine(
        loaded.config,
        DllmSettings(algorithm),
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        mask_id=loaded.mask_id,
    )
