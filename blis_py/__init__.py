"""blis-py: simulate clusters that serve large language models.

    import blis_py as blis

    simulation = blis.build(model="llama-3.1-8b", gpu="h100", num_instances=4, rate=20)
    result = simulation.run()
    result.summary, result.requests, result.steps

`blis.run(...)` and `blis.replay(trace=..., ...)` do both in one go, `blis.sweep(...)` many of them, and
`blis.plan(...)` finds the cheapest configuration that meets its targets. Keyword arguments are the flags of
the command line, or the keys of its YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blis_py import figures
    from blis_py.api import Simulation, build, replay, run
    from blis_py.comparison.compare import compare
    from blis_py.config.loader import load_config
    from blis_py.config.models import RunConfig
    from blis_py.errors import InputError
    from blis_py.ledger.explain import explain
    from blis_py.planning.api import pareto, plan, sweep
    from blis_py.report.saved import SavedResult, load
    from blis_py.result import Result
    from blis_py.version import __version__

__all__ = [
    "InputError",
    "Result",
    "RunConfig",
    "SavedResult",
    "Simulation",
    "__version__",
    "build",
    "compare",
    "explain",
    "figures",
    "load",
    "load_config",
    "pareto",
    "plan",
    "replay",
    "run",
    "sweep",
]

_HOMES = {
    "build": "blis_py.api",
    "replay": "blis_py.api",
    "run": "blis_py.api",
    "Simulation": "blis_py.api",
    "Result": "blis_py.result",
    "SavedResult": "blis_py.report.saved",
    "load": "blis_py.report.saved",
    "RunConfig": "blis_py.config.models",
    "load_config": "blis_py.config.loader",
    "InputError": "blis_py.errors",
    "compare": "blis_py.comparison.compare",
    "explain": "blis_py.ledger.explain",
    "pareto": "blis_py.planning.api",
    "plan": "blis_py.planning.api",
    "sweep": "blis_py.planning.api",
    "__version__": "blis_py.version",
}
_SIMULATES = ("build", "explain", "pareto", "plan", "replay", "run", "Simulation", "sweep")
"""Modules before whose import the native inner loop is activated, if compiled."""
_TAKE_SETTINGS = ("build", "replay", "run")
_described: dict[str, Any] = {}
"""Functions whose documentation and signature have been extended by the settings."""


def __getattr__(name: str) -> Any:
    """Import on first use: `import blis_py` itself costs nothing."""
    from importlib import import_module

    if name == "figures":
        return import_module("blis_py.figures")
    if name not in _HOMES:
        raise AttributeError(f"module 'blis_py' has no attribute {name!r}")
    if name in _SIMULATES:
        from blis_py import native

        native.activate()
    value = getattr(import_module(_HOMES[name]), name)
    if name in _TAKE_SETTINGS and name not in _described:
        from blis_py.config.described import described

        _described[name] = described(value)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
