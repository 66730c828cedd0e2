"""blis-py: simulate clusters that serve large language models.

    import blis_py as blis

    simulation = blis.build(model="llama-3.1-8b", gpu="h100", num_instances=4, rate=20)
    result = simulation.run()
    result.summary, result.requests, result.steps

`blis.run(...)` and `blis.replay(trace=..., ...)` do both in one go. Keyword arguments are the flags of
the command line, or the keys of its YAML.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blis_py.api import Simulation, build, replay, run
    from blis_py.config import load_config
    from blis_py.config_models import RunConfig
    from blis_py.errors import InputError
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
    "replay",
    "run",
]

_HOMES = {
    "build": "blis_py.api",
    "replay": "blis_py.api",
    "run": "blis_py.api",
    "Simulation": "blis_py.api",
    "Result": "blis_py.result",
    "RunConfig": "blis_py.config_models",
    "load_config": "blis_py.config",
    "InputError": "blis_py.errors",
    "__version__": "blis_py.version",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: `import blis_py` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'blis_py' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
