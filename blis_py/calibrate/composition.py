"""Composition of a step: the basis of the comparison of engine and simulator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from blis_py.core.diffusion_request import DiffusionFeatures
from blis_py.core.features import StepFeatures
from blis_py.traces.steplog import Numbers, StepLog


@dataclass(frozen=True, slots=True)
class Composition:
    """The composition of a step; requests by number, in batch order."""

    decodes: Numbers
    prefills: Numbers
    chunks: Numbers
    """Tokens of each prefill."""
    admitted: Numbers
    preempted: Numbers
    features: StepFeatures


@dataclass(frozen=True, slots=True)
class RoundComposition(Composition):
    """One round of block diffusion: `decodes` are the requests whose blocks take part.

    The features exclude LM-head rows and commits: how a block fills up depends on the model, and is not
    simulated.
    """

    batch: int
    """Index of the batch it belongs to."""
    committed: Numbers
    """Requests whose block became final."""


def recorded_composition(log: StepLog, index: int) -> Composition:
    """Composition of a step, or round, of the engine."""
    steps, features = log.steps, log.features(index)
    shared = {
        "decodes": steps["decode_ids"][index],
        "prefills": steps["prefill_ids"][index],
        "chunks": steps["prefill_chunks"][index],
        "admitted": steps["admitted_ids"][index],
        "preempted": steps["preempted_ids"][index],
    }
    if not isinstance(features, DiffusionFeatures):
        return Composition(**shared, features=features)
    return RoundComposition(
        **shared,
        features=without_outcome(features),
        batch=steps["batch"][index],
        committed=steps["committed_ids"][index],
    )


def without_outcome(features: DiffusionFeatures) -> DiffusionFeatures:
    """The features as far as they are determined by the scheduler."""
    return replace(features, emitted_rows=0, commit_blocks=0)
