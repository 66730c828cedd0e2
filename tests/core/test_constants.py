"""Constants of modules, defaults of settings and parameters, and limits of settings are in `constants.txt`.

Most decide results, and all decide what a user gets who says nothing. Where one is meant to change,
`python tests/core/test_constants.py` lists it anew; a reviewer looks at every line.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

LISTED = Path(__file__).with_name("constants.txt")
PACKAGES = ("core", "cluster", "latency", "metrics", "planning", "traces")
SHORT = 60
HIDDEN = ("__", "_is_", "_use_")
"""Of Python itself."""


@pytest.mark.parametrize("package", PACKAGES)
def test_constants_and_defaults_are_those_that_are_listed(package: str) -> None:
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    assert list(constants(package)) == [
        line for line in listed if line.split(":")[0].split(".")[0] == package
    ]


def constants(package: str) -> Iterator[str]:
    """Those of a package, a line for each module."""
    root = import_module(f"blis_py.{package}")
    names = [root.__name__, *(found.name for found in walk_packages(root.__path__, f"{root.__name__}."))]
    for name in sorted(names):
        module = import_module(name)
        found = [*_constants(module), *_defaults(module)]
        if found:
            yield f"{name.removeprefix('blis_py.')}: {'; '.join(found)}"


def _constants(module: ModuleType) -> Iterator[str]:
    for name in sorted(_assigned(ast.parse(Path(str(module.__file__)).read_bytes()).body)):
        value = getattr(module, name)
        if name.isupper() and not isinstance(value, str | type):
            yield f"{name} {_short(value)}"


def _assigned(statements: list[ast.stmt]) -> Iterator[str]:
    """Names that the module itself assigns."""
    for statement in statements:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from (one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name))


def _defaults(module: ModuleType) -> Iterator[str]:
    for name, value in sorted(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, FunctionType):
            yield from _of_parameters(name, value)
        elif isinstance(value, type):
            yield from _of_class(name, value)


def _of_class(name: str, one: type) -> Iterator[str]:
    if is_dataclass(one):
        for each in fields(one):
            if each.default is not MISSING:
                yield f"{name}.{each.name} {_short(each.default)}"
            elif each.default_factory is not MISSING:
                yield f"{name}.{each.name} {_short(each.default_factory())}"
            limits = {key: each.metadata.get(key) for key in ("least", "above", "most")}
            given = [f"{key} {_short(limit)}" for key, limit in limits.items() if limit is not None]
            if given:
                yield f"{name}.{each.name} {', '.join(given)}"
    for key, value in sorted(vars(one).items()):
        if isinstance(value, FunctionType) and not (is_dataclass(one) and key == "__init__"):
            yield from _of_parameters(f"{name}.{key}", value)
        elif isinstance(value, bool | int | float) and not (is_dataclass(one) or key.startswith(HIDDEN)):
            yield f"{name}.{key} {_short(value)}"


def _of_parameters(name: str, function: FunctionType) -> Iterator[str]:
    for each in inspect.signature(function).parameters.values():
        if isinstance(each.default, bool | int | float | tuple):
            yield f"{name}({each.name}) {_short(each.default)}"


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) < SHORT else f"#{sha256(text.encode()).hexdigest()[:6]}"


def _text(value: Any) -> str:
    """Without what has no order, and without functions."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple | range):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, set | frozenset):
        return str(sorted(map(_text, value)))
    if isinstance(value, np.ndarray):
        return _text(value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}{[_text(getattr(value, each.name)) for each in fields(value)]}"
    if isinstance(value, bool | int | float | str) or value is None:
        return repr(value)
    return type(value).__name__


if __name__ == "__main__":
    lines = (line for package in PACKAGES for line in constants(package))
    LISTED.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
