"""The simulated cluster. Public modules are importable without their room, too: `blis_py.cluster.router`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

_PUBLIC = {
    "ingress": ("admission", "closed_loop", "dispatch_order", "fairness", "saturation", "source"),
    "instances": ("fleet", "handoff", "handoffs", "instance", "kinds", "network", "outlet"),
    "recording": ("observer", "recorder"),
    "routing": ("deciders", "policies", "router", "scorers", "signals"),
    "time": ("clock", "events", "lookahead", "wakeups"),
}
_PLACES = {
    f"{__name__}.{name}": f"{__name__}.{room}.{name}" for room, names in _PUBLIC.items() for name in names
}


class _ShortNames:
    """Finder and loader of public modules by their names without the room: the same modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in _PLACES else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(_PLACES[spec.name])
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own specification back, which the import has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.append(_ShortNames())
