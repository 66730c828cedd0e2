"""Figures of a run by name, and the picture files of a result folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from blis_py.figures._at_a_glance import overview
from blis_py.figures._composition import batch
from blis_py.figures._heat_map import instances
from blis_py.figures._hits import hit_rate
from blis_py.figures._load_curve import throughput_latency
from blis_py.figures.distributions import latency_cdf, one_latency
from blis_py.figures.over_time import state_over_time
from blis_py.figures.pools import by_pool
from blis_py.figures.run import RunView
from blis_py.figures.style import Picture
from blis_py.figures.trade import pareto
from blis_py.metrics.registry import main

_FIGURES: dict[str, Callable[[RunView], Picture | None]] = {
    "overview": overview,
    "latency_cdf": latency_cdf,
    "timeline": state_over_time,
    "instances": instances,
    "batch": batch,
    "pools": by_pool,
}
OF_SEVERAL = {"throughput_latency": throughput_latency, "pareto": pareto, "hit_rate": hit_rate}
"""Figures of several runs: results, or the table of a sweep."""
USUAL = ("overview", "latency_cdf", "timeline", "pools")
"""Figures in every saved result that has the data for them."""


def figures() -> dict[str, Callable[[RunView], Picture | None]]:
    """Figures of one run by name, one for each main metric among them; `None` without data to draw."""
    return _FIGURES | {metric.name: partial(one_latency, metric=metric.name) for metric in main()}


def save_plots(
    run: RunView, folder: str | Path, names: Iterable[str] = USUAL, kinds: Iterable[str] = ("png",)
) -> list[Path]:
    """Write the figures that this run has data for, 1200 pixels wide.

    Returns:
        The written files, named after their content.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    written, drawn = [], figures()
    for name in names:
        picture = drawn[name](run)
        if picture is not None:
            written += [picture.save(Path(folder) / f"{name}.{kind}") for kind in kinds]
    return written
