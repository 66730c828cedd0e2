"""Strict settings: layers of keys merged, checked against frozen dataclasses, errors that teach.

A model class is a frozen dataclass whose field names are the YAML keys; nested dataclasses are sections.
Understood types: `str`, `int`, `float`, `bool`, `T | None`, `T | U`, `tuple[T, ...]`,
`dict[str, T]`, `Any`.
(Plain dataclasses rather than pydantic: importing that would take as long as a small run.)
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import Field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

from blis_py.core.checks import choices_of
from blis_py.core.flag_texts import decimal
from blis_py.core.settings import extended
from blis_py.errors import InputError
from blis_py.files.paths import check_text

T = TypeVar("T")

_THIS = "THIS"
"""Stands in a fix for the setting that is checked, whose name the check does not know."""
_NAMES: dict[Any, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggestion for an unknown word: the nearest known one, or all of them."""
    from difflib import get_close_matches  # errors are rare

    names = sorted(known)
    near = get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else "one of: " + ", ".join(names)


def flatten(tree: Mapping[Any, Any], model: type, prefix: str = "") -> dict[str, Any]:
    """Leaves of a nested mapping by dotted path; a value outside of `model`'s sections is a leaf, checked
    later."""
    hints = _types(model)
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        section = hints.get(key)
        if is_dataclass(section) and isinstance(section, type) and isinstance(value, Mapping | None):
            leaves |= flatten(value or {}, section, path + ".")
        else:
            leaves[path] = value
    return leaves


def _types(model: type) -> dict[str, Any]:
    """Types of the fields, with text annotations evaluated."""
    return {f.name: f.type for f in fields(extended(model))}


class Layers:
    """Settings by dotted path, later layers over earlier ones, each with its origin."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.given: set[str] = set()
        """Paths set by a user; the values of others are derived from these."""
        self._origin: dict[str, tuple[str | Path | None, str]] = {}
        self._flag: dict[str, str] = {}
        self._inner: dict[str, list[str]] = {}

    def add(
        self, leaves: Mapping[str, Any], *, file: str | Path | None, labels: Mapping[str, str] | None = None
    ) -> None:
        """Add `leaves` over the present settings; `labels` maps paths to their names in that file, if
        different."""
        for path, value in leaves.items():
            self.values[path] = value
            self._origin[path] = (file, (labels or {}).get(path, path))
        self.given.update(leaves)

    def imply(self, leaves: Mapping[str, Any]) -> None:
        """Add derived `leaves` under the present settings."""
        for path, value in leaves.items():
            self.values.setdefault(path, value)

    def forget(self, paths: Iterable[str]) -> None:
        """Remove settings."""
        for path in list(paths):
            del self.values[path]

    def flag(self, name: str, path: str, value: Any) -> None:
        """Add one flag over the present settings; two flags that disagree are an error.

        Raises:
            InputError: an earlier flag of the same setting has another value.
        """
        other = self._flag.get(path)
        if other is not None and self.values[path] != value:
            raise InputError(
                f"disagrees with {other} {_plain(self.values[path])}",
                key=name,
                value=value,
                fix="give only one",
            )
        self._flag[path] = name
        self.values[path] = value
        self.given.add(path)
        self._origin[path] = (None, name)

    def by_flag(self, path: str) -> bool:
        """Whether a flag sets `path`."""
        return path in self._flag

    def label(self, path: str) -> str:
        """The user's name of `path`: the flag, or the key."""
        return self._origin[path][1] if path in self._origin else path

    def file(self, path: str) -> str | Path | None:
        """The file that sets `path`; None = none does."""
        return self._origin.get(path, (None, path))[0]

    def error(self, problem: str, path: str, *, fix: str | None = None, value: Any = None) -> InputError:
        """An error on the setting at `path`, in the terms of its origin."""
        file, label = self._origin.get(path, (None, path))
        return InputError(problem, file=file, key=label, value=value, fix=fix)

    def build(self, model: type[T], prefix: str = "") -> T:
        """The model with given values checked and the others at their defaults."""
        if not prefix:
            self._inner = self._by_section()
        model = extended(model)
        hints = _types(model)
        known = {f.name: f for f in fields(model)}  # type: ignore[arg-type]
        self._refuse_unknown(known, prefix)
        return model(
            **{
                name: self._value(known[name], hints[name], prefix + name)
                for name in known
                if self._is_section(hints[name]) or prefix + name in self.values or self._below(prefix + name)
            }
        )

    @staticmethod
    def _is_section(hint: Any) -> bool:
        return isinstance(hint, type) and is_dataclass(hint)

    def _refuse_unknown(self, known: Mapping[str, Any], prefix: str) -> None:
        for path, value in self.values.items():
            if not path.startswith(prefix):
                continue
            head = path[len(prefix) :].partition(".")[0]
            if head not in known:
                raise self.error("unknown key", path, fix=did_you_mean(head, known), value=value)

    def _value(self, spec: Field[Any], hint: Any, path: str) -> Any:
        if self._is_section(hint):
            if path in self.values:
                keys = ", ".join(f.name for f in fields(extended(hint)))
                raise self.error(f"must be a section with keys {keys}", path, value=self.values[path])
            return self.build(hint, path + ".")
        below = self._below(path)
        if below and get_origin(hint) is not dict:
            raise self.error("unknown key", below[0], fix=f"{path} has no keys of its own")
        given = self.values.get(path)
        if below:
            given = _nested(given, {key.removeprefix(path + "."): self.values[key] for key in below})
        try:
            value = coerce(given, hint)
            check_bounds(value, spec.metadata)
        except InputError as error:
            where = below[-1] if below else path
            name = self.label(where).lstrip("-").replace("-", "_")
            fix = None if error.fix is None else error.fix.replace(f"{_THIS}=", f"{name}=")
            raise self.error(error.problem, where, fix=fix, value=self.values[where]) from error
        return value

    def _by_section(self) -> dict[str, list[str]]:
        """The given keys inside of each path."""
        inner: dict[str, list[str]] = {}
        for key in self.values:
            above = key.rpartition(".")[0]
            while above:
                inner.setdefault(above, []).append(key)
                above = above.rpartition(".")[0]
        return inner

    def _below(self, path: str) -> list[str]:
        """Given keys inside `path`."""
        return self._inner.get(path, [])


def _nested(base: Any, leaves: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with values at dotted keys replaced."""
    tree = dict(base) if isinstance(base, Mapping) else {}
    for path, value in leaves.items():
        key, dot, rest = path.partition(".")
        tree[key] = _nested(tree.get(key), {rest: value}) if dot else value
    return tree


def coerce(value: Any, hint: Any) -> Any:
    """`value` as the annotated type, without guessing.

    A whole number is accepted as a number, and so is a number that YAML reads as text (`1e-6`).

    Raises:
        InputError: the value does not have the type.
    """
    options = get_args(hint) if get_origin(hint) in (types.UnionType, Union) else (hint,)
    for option in options:
        if option is type(None):
            if value is None:
                return None
            continue
        try:
            return _coerce_one(value, option)
        except InputError as error:
            problem = error
    raise problem


def _coerce_one(value: Any, hint: Any) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(coerce(item, get_args(hint)[0]) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {check_text(str(key)): coerce(item, get_args(hint)[1]) for key, item in value.items()}
    if hint is float and not isinstance(value, bool):
        try:
            return decimal(value) if isinstance(value, str) else float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    elif isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return check_text(value) if isinstance(value, str) else value
    expected = {tuple: "a list", dict: "a mapping of names to values"}.get(origin) or _NAMES.get(
        hint, "valid"
    )
    raise InputError(f"must be {expected}")


def check_bounds(value: Any, limits: Mapping[str, Any]) -> None:
    """Refuse a number out of bounds (NaN always is), and a word that is not a choice.

    Raises:
        InputError: it is out of bounds, not finite, or not one of the choices.
    """
    choices = choices_of(limits)
    if choices is not None and isinstance(value, str) and value not in choices:
        if "," in value and all(part.strip() in choices for part in value.split(",")):
            fix = f"compare them: blis sweep --vary {_THIS}={value}, or one blis run each and blis compare"
            raise InputError("takes one value", fix=fix)
        raise InputError("unknown value", fix=did_you_mean(value, choices))
    if isinstance(value, tuple):
        for item in value:
            check_bounds(item, limits)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError("must be a finite number")
    if (least := limits.get("least")) is not None and value < least:
        raise InputError(f"must be at least {_number(least)}")
    if (above := limits.get("above")) is not None and value <= above:
        raise InputError(f"must be greater than {_number(above)}")
    if (most := limits.get("most")) is not None and value > most:
        raise InputError(f"must be at most {_number(most)}")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _plain(value: Any) -> str:
    return "automatic" if value is None else str(value)
