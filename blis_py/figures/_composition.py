"""Token composition of steps: prefill and decode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from blis_py.figures.axes import rate_axis, time_axis, time_unit
from blis_py.figures.facts import foot
from blis_py.figures.run import RunView
from blis_py.figures.style import BLUE, INK, ORANGE, Picture, grid, in_house_style, legend_beside_title, say
from blis_py.figures.timeline import Floats, timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SLICES = 200


@in_house_style
def batch(run: RunView) -> Picture | None:
    """Prefill and decode tokens per second, and in a step on average; `None` without recorded steps."""
    state = timeline(run, _SLICES)
    if state is None:
        return None
    figure, (per_second, per_step) = grid(2, 1, height=6.2, gap=0.6, left=0.85, foot=foot(run.config))
    prefill, decode = state.prefill_tokens.sum(axis=0), state.decode_tokens.sum(axis=0)
    steps = state.steps.sum(axis=0)
    moments = state.time_s / time_unit(run.end_s)[1]
    _stack(per_second, moments, prefill / state.slice_s, decode / state.slice_s)
    per_second.set_title("Tokens computed per second, whole cluster")
    if steps.any():
        some = np.maximum(steps, 1e-9)  # no tokens in slices without a step
        mean = prefill / some, decode / some
        _stack(per_step, moments, *mean)
        _draw_budget(per_step, run, float((mean[0] + mean[1]).max()))
    else:
        say(per_step, "there was no step")
    per_step.set_title("Tokens in a step, on average")
    for ax in (per_second, per_step):
        time_axis(ax, run.end_s)
        legend_beside_title(ax)
        ax.label_outer()
    return figure


def _stack(ax: Axes, moments: Floats, prefill: Floats, decode: Floats) -> None:
    """Stacked areas: decode tokens below, prefill tokens on top."""
    look: Any = {"linewidth": 0, "step": "mid"}
    ax.fill_between(moments, decode, color=BLUE, label="decode", **look)
    ax.fill_between(moments, decode, decode + prefill, color=ORANGE, label="prefill", **look)
    rate_axis(ax)


def _draw_budget(ax: Axes, run: RunView, largest: float) -> None:
    """Draw the token budget of a step, if steps come near it."""
    budget = (run.config.get("scheduler") or {}).get("max_num_batched_tokens")
    if budget and budget < 4 * largest:
        ax.axhline(budget, color=INK, linewidth=1.1, linestyle=(0, (3, 2)), label=f"budget {budget:,}")
