"""Typed access to values of a parsed file; errors name file and key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from blis_py.errors import InputError


@dataclass(frozen=True, slots=True)
class FilePart:
    """A value in a file, and its location."""

    value: Any
    path: Path
    key: str
    """Dotted key; empty for the file as a whole."""
    fix: str | None = None
    """Remedy appended to errors."""

    def error(self, problem: str) -> InputError:
        return InputError(problem, file=self.path, key=self.key, value=self.value, fix=self.fix)

    def of(self, name: Any) -> FilePart:
        """The value of a mapping under a name; may be null.

        Raises:
            InputError: it is not a mapping, or the key is missing.
        """
        values = self.mapping(type(name))
        if name not in values:
            raise InputError("missing key", file=self.path, key=self._below(name), fix=self.fix)
        return FilePart(values[name], self.path, self._below(name), self.fix)

    def _below(self, name: Any) -> str:
        return f"{self.key}.{name}" if self.key else str(name)

    def mapping(self, keys: type = str) -> Mapping[Any, Any]:
        """The value as a mapping with keys of one type.

        Raises:
            InputError: it is not a mapping, or a key is not of that type.
        """
        if not isinstance(self.value, Mapping):
            raise self.error("must be a mapping")
        for name in self.value:
            if not isinstance(name, keys):
                kind = "a whole number" if keys is int else "text"
                raise InputError(f"a key must be {kind}", file=self.path, key=self._below(name), fix=self.fix)
        return self.value

    def check_finite(self) -> None:
        """Refuse infinity and NaN at any depth.

        Raises:
            InputError: a number is not finite.
        """
        if isinstance(self.value, Mapping):
            for name, value in self.value.items():
                FilePart(value, self.path, self._below(name), self.fix).check_finite()
        elif isinstance(self.value, list):
            for each in self.items():
                each.check_finite()
        elif isinstance(self.value, float) and not isfinite(self.value):
            raise self.error("must be a finite number")

    def items(self) -> list[FilePart]:
        """The elements of a list.

        Raises:
            InputError: it is not a list.
        """
        if not isinstance(self.value, Sequence) or isinstance(self.value, str):
            raise self.error("must be a list")
        return [
            FilePart(each, self.path, f"{self.key}[{place}]", self.fix)
            for place, each in enumerate(self.value)
        ]

    def number(self, low: float, high: float) -> float:
        """The value as a number from `low` to `high`.

        Raises:
            InputError: it is not a number, or out of bounds.
        """
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.error(f"must be a number from {low:g} to {high:g}")
        return float(value)

    def whole(self, low: int, high: int) -> int:
        """The value as a whole number from `low` to `high`.

        Raises:
            InputError: it is not a whole number, or out of bounds.
        """
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"must be a whole number from {low:,} to {high:,}")
        return value
