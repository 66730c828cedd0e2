"""A package in memory, and one changed function of it: importing everything again would take longest."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import CO_OPTIMIZED
from pathlib import Path
from pkgutil import walk_packages
from types import CodeType, FrameType, FunctionType
from typing import NamedTuple

PACKAGE = "blis_py"


class Place(NamedTuple):
    """Of a function in a source."""

    file: str
    name: str
    line: int


def _place(code: CodeType) -> Place:
    return Place(code.co_filename, code.co_qualname, code.co_firstlineno)


class Warm:
    """All modules of a checkout, imported once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: dict[str, bytes] = {}
        self._called: set[Place] = set()
        """At imports: what they made of their results stays as it is."""
        sys.setprofile(self._note)
        try:
            package = import_module(PACKAGE)
            for module in walk_packages(package.__path__, f"{PACKAGE}."):
                import_module(module.name)
        finally:
            sys.setprofile(None)
        self._functions: dict[Place, list[FunctionType]] = {}
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and (one.__module__ or "").startswith(PACKAGE):
                self._functions.setdefault(_place(one.__code__), []).append(one)
        for name, module in sys.modules.items():
            if name.startswith(PACKAGE) and module.__file__:
                self._sources[name] = Path(module.__file__).read_bytes()
        gc.freeze()

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED and PACKAGE in frame.f_code.co_filename:
            self._called.add(_place(frame.f_code))

    def changed(self, name: str) -> bool:
        """Put the functions in which a module's source differs now in their place, if that is enough."""
        file = sys.modules[name].__file__
        assert file
        before = compile(self._sources[name], file, "exec", dont_inherit=True)
        after = compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
        if not same(before, after, but_functions=True):
            return False
        differing = [
            (_place(old), new)
            for old, new in zip(functions(before), functions(after), strict=True)
            if not same(old, new)
        ]
        if any(place in self._called or place not in self._functions for place, _ in differing):
            return False
        for place, new in differing:
            for function in self._functions[place]:
                if len(function.__code__.co_freevars) != len(new.co_freevars):
                    return False
                function.__code__ = new
        return True


def forget() -> None:
    """All modules of the package, and what imports them, are imported anew."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.split(".")[0] == PACKAGE or "/tests/golden/battery/" in file:
            del sys.modules[name]


def functions(code: CodeType) -> Iterator[CodeType]:
    """Functions and methods in the order of the source, without those inside others."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if _is_function(inner):
                yield inner
            elif not inner.co_flags & CO_OPTIMIZED:
                yield from functions(inner)


def _is_function(code: CodeType) -> bool:
    return bool(code.co_flags & CO_OPTIMIZED) and not code.co_name.startswith("<")


def same(old: object, new: object, but_functions: bool = False) -> bool:
    """Whether both do the same, wherever their lines are."""
    if not isinstance(old, CodeType) or not isinstance(new, CodeType):
        return type(old) is type(new) and repr(old) == repr(new)
    if but_functions and _is_function(old) and _is_function(new):
        return old.co_name == new.co_name
    return (
        (old.co_code, old.co_names, old.co_varnames, old.co_freevars)
        == (new.co_code, new.co_names, new.co_varnames, new.co_freevars)
        and len(old.co_consts) == len(new.co_consts)
        and all(same(*pair, but_functions) for pair in zip(old.co_consts, new.co_consts, strict=True))
    )
