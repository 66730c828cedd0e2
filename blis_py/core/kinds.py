"""Kinds of requests beside the autoregressive one: what a step of theirs has that others have not.

A further kind is one entry of `KINDS`; its scheduler is a `Lifecycle` in a file of its own.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple

from blis_py.core.diffusion_features import ROUND_FEATURES, DiffusionFeatures
from blis_py.core.features import Feature, StepFeatures


class StepKind(NamedTuple):
    """The steps of a kind of requests."""

    features: type[StepFeatures]
    names: Mapping[str, Feature]
    """Features of its steps beyond `FEATURES`."""


IN_BLOCKS: Final = StepKind(DiffusionFeatures, ROUND_FEATURES)
"""Answers come in blocks, each settled over several steps."""
KINDS: Final[Mapping[str, StepKind]] = {"diffusion": IN_BLOCKS}
"""By name: the key of its settings in the metadata of a step log, and of its part of a summary."""

KIND_FEATURES: Final[dict[str, Feature]] = {
    name: feature for kind in KINDS.values() for name, feature in kind.names.items()
}
"""Features that only steps of some kinds have; 0 for others."""


def modules(part: str) -> dict[str, Any]:
    """Modules that each kind adds to a part of the program: those of the kind's name in that package."""
    return {name: import_module(f"{part}.{name}") for name in KINDS}


def named_in(facts: Container[str]) -> str | None:
    """The kind that has a part in a summary, or in the metadata of a log; `None` = autoregressive."""
    return next((name for name in KINDS if name in facts), None)


FORMER_FILES: Final = ("block_rounds.csv", "dllm.yaml")
"""Files that results of these kinds had before folders had a marker; see `blis_py.outputs.complete`."""
