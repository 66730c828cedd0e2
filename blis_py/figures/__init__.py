"""Every figure, in one house style: `blis plot`, `result.plot`, and from Python

    from blis_py import figures

    figures.pareto(results).save("pareto.svg")

A figure of one run is drawn from a `RunView`, one of several runs from results or from the table of a sweep.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blis_py.figures._at_a_glance import overview
    from blis_py.figures._composition import batch
    from blis_py.figures._heat_map import instances
    from blis_py.figures._hits import hit_rate
    from blis_py.figures._load_curve import throughput_latency
    from blis_py.figures.agreement import predicted_measured
    from blis_py.figures.distributions import latency_cdf, one_latency
    from blis_py.figures.over_time import state_over_time
    from blis_py.figures.pools import by_pool
    from blis_py.figures.run import RunView
    from blis_py.figures.saving import save_plots
    from blis_py.figures.style import Picture
    from blis_py.figures.trade import pareto
    from blis_py.figures.waterfall import autopsy

__all__ = [
    "Picture",
    "RunView",
    "autopsy",
    "batch",
    "by_pool",
    "hit_rate",
    "instances",
    "latency_cdf",
    "one_latency",
    "overview",
    "pareto",
    "predicted_measured",
    "save_plots",
    "state_over_time",
    "throughput_latency",
]

_HOMES = {
    "Picture": "style",
    "RunView": "run",
    "autopsy": "waterfall",
    "batch": "_composition",
    "by_pool": "pools",
    "hit_rate": "_hits",
    "instances": "_heat_map",
    "latency_cdf": "distributions",
    "one_latency": "distributions",
    "overview": "_at_a_glance",
    "pareto": "trade",
    "predicted_measured": "agreement",
    "save_plots": "saving",
    "state_over_time": "over_time",
    "throughput_latency": "_load_curve",
}


def __getattr__(name: str) -> Any:
    """Import on first use: matplotlib is slow to import."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
