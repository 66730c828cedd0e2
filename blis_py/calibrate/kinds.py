"""Calibration of kinds of requests beside the autoregressive one."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.calibrate import diffusion, diffusion_blocks, diffusion_playback
from blis_py.calibrate.composition import Composition, recorded_step
from blis_py.core.features import StepFeatures
from blis_py.traces.steplog import StepLog

Blocks = diffusion_blocks.RecordedBlocks
"""Execution and rounds of the blocks of a recorded run whose answers came in blocks."""
CAUSES, REGIMES, ROUNDS_FIX = diffusion.CAUSES, diffusion.REGIMES, diffusion.ROUNDS_FIX
blocks_of, check_kinds = diffusion_blocks.blocks_of, diffusion_blocks.check_kinds
in_blocks, recorded_blocks = diffusion_blocks.of_blocks, diffusion_blocks.recorded_blocks
as_measured, as_predicted = diffusion_playback.as_measured, diffusion_playback.as_predicted
flag = diffusion.flag


def recorded_composition(log: StepLog, index: int) -> Composition:
    """The composition of a step, or round, of the engine."""
    return diffusion.recorded_round(log, index) if "batch" in log.steps else recorded_step(log, index)


def regime_of(features: StepFeatures, buckets: Sequence[int]) -> str | None:
    """The regime of a step that only its kind of requests has; `None` = it is that of other steps."""
    return diffusion.regime_of(features, buckets)
