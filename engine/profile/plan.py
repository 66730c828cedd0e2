"""The batch compositions to measure, as plain data; a function of the engine's limits alone."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.errors import InputError
from engine.profile import families
from engine.profile.shapes import Grid, Shape, ShapeLimits, fits


def plan(limits: ShapeLimits, grid: Grid, seed: int = 0) -> list[Shape]:
    """All shapes of an autoregressive model that fit, each once.

    Raises:
        InputError: no shape fits the limits.
    """
    chosen = (
        families.decode(limits, grid),
        families.host(limits, grid),
        families.skewed(limits, grid),
        families.prefill(limits, grid),
        families.mixed(limits, grid, seed),
        families.experts(limits, grid),
        families.shared(limits, grid),
    )
    shapes = list(dict.fromkeys(shape for family in chosen for shape in family if fits(shape, limits)))
    if not any(shape.source == "decode" for shape in shapes):
        least = limits.max_model_len - families.longest_context_tokens(limits) + 2 * families.CONTEXT_TOKENS
        fix = f"use a max_model_len of at least {least}"
        raise InputError("no room for a single decode step", key="max_model_len", fix=fix)
    return shapes


def sentinel(shapes: Sequence[Shape]) -> Shape:
    """A medium shape, measured repeatedly to detect drift of the machine."""
    decodes = sorted((s for s in shapes if s.source == "decode"), key=lambda s: sum(s.decodes))
    middle = decodes[len(decodes) // 2]
    return Shape("sentinel", middle.decodes, steps=middle.steps)
