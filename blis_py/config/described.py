"""Documentation of the settings: what `help(blis.run)` lists, from the configuration models."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from blis_py.config.engine import usual_settings
from blis_py.config.models import DEFAULT_ENGINE, NAMES, SECTIONS, RunConfig
from blis_py.core.checks import choices_of
from blis_py.core.settings import extended

F = TypeVar("F", bound=Callable[..., Any])

_WIDTH = 100
_KINDS = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "tuple[str, ...]": "list of texts",
    "tuple[float, ...]": "list of numbers",
    "dict[str, str]": "texts by name",
    "dict[str, int]": "whole numbers by name",
    "dict[str, float]": "numbers by name",
    "dict[str, dict[str, float]]": "numbers by name, by part",
}
_BEYOND_SENSE = 10**6
"""Bounds from this size on only guard against accidents, and are not documented."""


def described(function: F) -> F:
    """The function with every setting added to its signature and documentation."""
    function.__doc__ = f"{inspect.getdoc(function)}\n\n{settings_text()}"
    function.__signature__ = _signature(function)  # type: ignore[attr-defined]
    return function


def settings_text() -> str:
    """Every setting with its meaning, type, bounds and default, section by section."""
    parts = [
        "Settings (a section can be given as a mapping instead: latency={'model': 'roofline'});",
        f"defaults are those of engine={DEFAULT_ENGINE!r}, and another engine brings its own.",
    ]
    usual = usual_settings()
    for title, section, prefix in _sections():
        parts += ["", title, "-" * len(title)]
        for name, field, kind in _settings(section, prefix):
            default = usual.get(f"{prefix}{field.name}", field.default)
            parts += _entry(name, field, kind, default, meanings(section).get(field.name, ""))
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, type, str]]:
    """Sections of settings: title, model, and key prefix."""
    yield "Run", extended(RunConfig), ""
    for name, model in SECTIONS.items():
        yield f"{name.capitalize()}: {_first_line(model)}", extended(model), f"{name}."


def _settings(section: Any, prefix: str) -> Iterator[tuple[str, Field[Any], str]]:
    """Keyword-argument name, field and type of each setting."""
    names: dict[str, str] = {}
    for name, key in NAMES.items():
        names.setdefault(key, name)
    for field in fields(section):
        if prefix or not _is_section(field):
            key, kind = f"{prefix}{field.name}", inspect.formatannotation(field.type)
            yield names.get(key, f"{prefix.rstrip('.')}={{{field.name!r}: …}}"), field, kind


def _is_section(field: Field[Any]) -> bool:
    return isinstance(field.default_factory, type) and is_dataclass(field.default_factory)


def _entry(name: str, field: Field[Any], kind: str, default: Any, meaning: str) -> list[str]:
    optional = kind.endswith(" | None")
    words = " or ".join(_KINDS.get(part, part) for part in kind.removesuffix(" | None").split(" | "))
    stated = ", ".join((words, *_bounds(field), f"default {_default(field, default)}"))
    if optional and default is not None:
        stated += ", or None"
    lines = textwrap.wrap(meaning, _WIDTH - 4) if meaning else []
    return [f"{name}: {stated}", *(f"    {line}" for line in lines)]


def _bounds(field: Field[Any]) -> list[str]:
    limits = field.metadata
    if choices := choices_of(limits):
        return [" | ".join(sorted(choices))]
    bounds = []
    if limits.get("least") is not None:
        bounds.append(f"at least {limits['least']:g}")
    if limits.get("above") is not None:
        bounds.append(f"above {limits['above']:g}")
    if limits.get("most") is not None and limits["most"] < _BEYOND_SENSE:
        bounds.append(f"at most {limits['most']:,}")
    return bounds


def field_of(key: str) -> Field[Any]:
    """The field that registers a setting."""
    section, _, name = key.rpartition(".")
    model = extended(SECTIONS[section] if section else RunConfig)
    return next(field for field in fields(model) if field.name == name)


def _default(field: Field[Any], default: Any) -> str:
    if default is not MISSING:
        return repr(default)
    factory: Any = field.default_factory
    return repr(factory()) if factory is not MISSING else "none"


def meanings(model: type) -> dict[str, str]:
    """The docstring below each field in the source, else its help."""
    return helps(model) | docstrings(model)


def helps(model: type) -> dict[str, str]:
    """The help of each field; empty without one."""
    spellings = {field.name: field.metadata.get("spelling") for field in fields(model)}
    return {name: spelling.help if spelling else "" for name, spelling in spellings.items()}


def docstrings(model: type) -> dict[str, str]:
    """The docstring below each field in the source, of those that have one."""
    texts: dict[str, str] = {}
    for base in reversed(model.__mro__):
        texts |= _all_meanings(base.__module__).get(base.__name__, {})
    return texts


@cache
def _all_meanings(module: str) -> dict[str, dict[str, str]]:
    """Field docstrings of every class in a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {node.name: _below(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _below(node: ast.ClassDef) -> dict[str, str]:
    texts = {}
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            value = after.value if isinstance(after, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[statement.target.id] = " ".join(value.value.split()).replace("null", "None")
    return texts


def _first_line(model: Any) -> str:
    return (inspect.getdoc(model) or "").partition("\n")[0].rstrip(".")


def _shown(default: Any) -> Any:
    """A default; None if it is created anew each time."""
    return None if default is MISSING else default


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature with every setting as a keyword argument, for completion in editors and notebooks."""
    own = inspect.signature(function)
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    taken = {p.name for p in kept}
    defaults = {f"{prefix}{f.name}": f.default for _, model, prefix in _sections() for f in fields(model)}
    defaults |= usual_settings()
    settings = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_shown(defaults.get(key)))
        for name, key in NAMES.items()
        if name not in taken
    ]
    return own.replace(parameters=[*kept, *settings])
