"""Stand-ins for modules that an engine's scheduler imports and does not need to decide a step.

With `install`, modules of the engine that are not named, and third-party ones that are, become stand-ins:
so neither CUDA nor torch nor any other requirement of the engine has to be installed. Any attribute of a
stand-in is a class that can be subclassed, subscripted, called, and used as a decorator; its instances are
false. Runs in a bare interpreter, so this file imports the standard library alone.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from typing import Any

VERSION = "2.13.0"
"""Version that a stand-in states, for engines that look at the one of torch."""


class _Anything(type):
    """Type of the classes that stand for any attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = stand_in(name)
        setattr(cls, name, part)
        return part

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return object

    __ror__ = __or__

    def __iter__(cls) -> Iterator[Any]:
        return iter(())

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]  # a decorator
        return type.__call__(cls, *args, **kwargs)


def _attribute(self: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    part = vars(self)[name] = stand_in(name)
    return part


def _called(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Decorate a function; anything else has no effect."""
    return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self


def _nothing(self: Any, *args: Any, **kwargs: Any) -> None:
    """Accept anything."""


def stand_in(name: str) -> Any:
    """A class that stands for an attribute."""
    members = {
        "__init__": _nothing,
        "__getattr__": _attribute,
        "__call__": _called,
        "__bool__": lambda self: False,
        "__enter__": lambda self: self,
        "__exit__": _nothing,
        "__init_subclass__": classmethod(_nothing),
    }
    return _Anything(name, (), members)


class StandInModule(types.ModuleType):
    """A module with any attribute."""

    __path__ = []  # noqa: RUF012 a package, too

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        part = stand_in(name)
        setattr(self, name, part)
        return part


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Supplier of stand-ins, before the usual search."""

    def __init__(
        self,
        root: str,
        package: str,
        real: Collection[str],
        absent: Collection[str],
        parts: Mapping[str, Mapping[str, Any]],
    ) -> None:
        self._root, self._package, self._real, self._absent, self._parts = root, package, real, absent, parts

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        top = name.partition(".")[0]
        if top in self._absent or (top == self._package and not self._is_real(name)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def _is_real(self, name: str) -> bool:
        return any(name == each or name.startswith(f"{each}.") for each in self._real)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StandInModule(spec.name)
        if spec.name.partition(".")[0] == self._package:
            module.__path__ = [f"{self._root}/{spec.name.replace('.', '/')}"]  # its real modules are found
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__version__"] = VERSION
        module.__dict__.update(self._parts.get(module.__name__, {}))


def install(
    root: str,
    package: str,
    real: Collection[str],
    absent: Collection[str],
    parts: Mapping[str, Mapping[str, Any]],
) -> None:
    """Stand in for modules that are imported from now on.

    Args:
        root: folder with the engine's package.
        real: its modules that are imported as they are, with all below them.
        absent: third-party modules that are not.
        parts: attributes of stand-ins that must be right, by module.
    """
    sys.dont_write_bytecode = True
    sys.path.insert(0, root)
    sys.meta_path.insert(0, _Finder(root, package, real, absent, parts))
