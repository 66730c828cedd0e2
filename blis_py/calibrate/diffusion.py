"""Rounds of block diffusion in calibration: who was in each, and of which regime it is."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blis_py.calibrate.composition import Composition, recorded_step
from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.core.features import StepFeatures
from blis_py.traces.steplog import Numbers, StepLog

REGIMES = ("denoise", "prefill", "mixed", "padded")
"""Rounds of blocks alone, of prompts alone, of both, and padded ones."""
CAUSES = {"rounds": "rounds per block", "denoise": "denoise rounds"}
"""Labels of errors: the one after the token counts, the other in place of decode steps."""
ROUNDS_FIX = "replay the rounds of the run: `--dllm-workload RUN_DIR/dllm.yaml`"
_SWITCHES = {"fdfo": "dllm-fdfo", "reuse_in_place": "dllm-in-place-reuse", "reloop": "dllm-re-loop"}


@dataclass(frozen=True, slots=True)
class RoundComposition(Composition):
    """One round: `decodes` are the requests whose blocks take part.

    The features are without LM-head rows and commits: how a block fills up is the model's affair, and not
    simulated.
    """

    batch: int
    """Index of the batch it belongs to."""
    committed: Numbers
    """Requests whose block became final."""


def recorded_round(log: StepLog, index: int) -> RoundComposition:
    """The composition of a round of the engine."""
    step, features = recorded_step(log, index), log.features(index)
    assert isinstance(features, DiffusionFeatures)
    return RoundComposition(
        decodes=step.decodes,
        prefills=step.prefills,
        chunks=step.chunks,
        admitted=step.admitted,
        preempted=step.preempted,
        features=without_outcome(features),
        batch=log.steps["batch"][index],
        committed=log.steps["committed_ids"][index],
    )


def without_outcome(features: DiffusionFeatures) -> DiffusionFeatures:
    """The features as far as the scheduler decides them."""
    return replace(features, emitted_rows=0, commit_blocks=0)


def regime_of(features: StepFeatures, buckets: Sequence[int]) -> str | None:
    """One of `REGIMES`; `None` where it is no round.

    Args:
        buckets: blocks of the graphs, ascending.
    """
    if not isinstance(features, DiffusionFeatures):
        return None
    blocks = features.denoise_blocks
    if features.prefill_blocks:
        return "mixed" if blocks else "prefill"
    place = bisect_left(buckets, blocks)
    return "padded" if place < len(buckets) and buckets[place] > blocks else "denoise"


def flag(name: str, value: object) -> str | None:
    """The flags of a setting of the execution of blocks; `None` for any other setting."""
    if name in _SWITCHES:
        return f"--{'' if value else 'no-'}{_SWITCHES[name]}"
    return f"block_size: {value} in the file of --dllm-workload" if name == "block_tokens" else None
