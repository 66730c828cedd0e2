"""The figures of a run, by name, and the pictures that lie in the folder of its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from blis_py.figures.at_a_glance import overview
from blis_py.figures.composition import batch
from blis_py.figures.distributions import latency_cdf, one_latency
from blis_py.figures.heat_map import instances
from blis_py.figures.hits import hit_rate
from blis_py.figures.load_curve import throughput_latency
from blis_py.figures.over_time import state_over_time
from blis_py.figures.run import RunView
from blis_py.figures.style import Picture
from blis_py.figures.trade import pareto
from blis_py.metrics.registry import limitable

FIGURES: dict[str, Callable[[RunView], Picture | None]] = {
    "overview": overview,
    "latency_cdf": latency_cdf,
    "timeline": state_over_time,
    "instances": instances,
    "batch": batch,
    **{name: partial(one_latency, metric=name) for name in limitable()},
}
"""Of one run. One that has nothing to be drawn from gives `None`."""
OF_SEVERAL = {"throughput_latency": throughput_latency, "pareto": pareto, "hit_rate": hit_rate}
"""Of several runs: results, or the table of a sweep."""
USUAL = ("overview", "latency_cdf", "timeline")
"""What every saved result has."""


def save_plots(
    run: RunView, folder: str | Path, names: Iterable[str] = USUAL, kinds: Iterable[str] = ("png",)
) -> list[Path]:
    """Writes the figures that this run has data for, 1200 pixels wide.

    Returns:
        The files, named after their content.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = []
    for name in names:
        picture = FIGURES[name](run)
        if picture is not None:
            written += [picture.save(Path(folder) / f"{name}.{kind}") for kind in kinds]
    return written
