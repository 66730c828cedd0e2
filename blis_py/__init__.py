"""blis-py: simulate clusters that serve large language models.

    import blis_py as blis

    simulation = blis.build(model="llama-3.1-8b", gpu="h100", num_instances=4, rate=20)
    result = simulation.run()
    result.summary, result.requests, result.steps

`blis.run(...)` and `blis.replay(trace=..., ...)` do both in one go, `blis.sweep(...)` many of them, and
`blis.plan(...)` finds the cheapest configuration that keeps its targets. Keyword arguments are the flags of
the command line, or the keys of its YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blis_py.api import Simulation, build, replay, run
    from blis_py.config.loader import load_config
    from blis_py.config.models import RunConfig
    from blis_py.errors import InputError
    from blis_py.planning.api import plan, sweep
    from blis_py.result import Result
    from blis_py.version import __version__

__all__ = [
    "InputError",
    "Result",
    "RunConfig",
    "Simulation",
    "__version__",
    "build",
    "load_config",
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
    "RunConfig": "blis_py.config.models",
    "load_config": "blis_py.config.loader",
    "InputError": "blis_py.errors",
    "plan": "blis_py.planning.api",
    "sweep": "blis_py.planning.api",
    "__version__": "blis_py.version",
}
_SIMULATES = ("build", "plan", "replay", "run", "Simulation", "sweep")
"""Before these are imported, the inner loop is taken from native code, where there is any."""


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: `import blis_py` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'blis_py' has no attribute {name!r}")
    from importlib import import_module

    if name in _SIMULATES:
        from blis_py import native

        native.activate()
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
