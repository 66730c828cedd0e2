"""Composition of a step: the basis of the comparison of engine and simulator."""

from __future__ import annotations

from dataclasses import dataclass

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


def recorded_step(log: StepLog, index: int) -> Composition:
    """The composition of a step of the engine."""
    steps = log.steps
    return Composition(
        decodes=steps["decode_ids"][index],
        prefills=steps["prefill_ids"][index],
        chunks=steps["prefill_chunks"][index],
        admitted=steps["admitted_ids"][index],
        preempted=steps["preempted_ids"][index],
        features=log.features(index),
    )
