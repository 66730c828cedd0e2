"""Typed reading of a HuggingFace `config.json`: every complaint names file, key and value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import load_object


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A mapping inside a config file. A key that is null counts as absent.

    Methods that take several keys read the first one present and, when there is none, return
    `default` or complain about the first.
    """

    file: Path
    values: Mapping[str, Any]
    prefix: str = ""

    @classmethod
    def read(cls, file: Path) -> ConfigFile:
        """The config, or its `text_config` where a multimodal model keeps the language part there."""
        return cls.of(
            file, load_object(file, fix="give a HuggingFace config.json or the folder that holds one")
        )

    @classmethod
    def of(cls, file: Path, values: Mapping[str, Any]) -> ConfigFile:
        """The same for values that have been read already."""
        config = cls(file, values)
        if "num_hidden_layers" not in values and "text_config" in values:
            return config.required_section("text_config")
        return config

    def error(self, key: str, problem: str, value: object = None, fix: str | None = None) -> InputError:
        return InputError(problem, file=self.file, key=self.prefix + key, value=value, fix=fix)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def key(self, *keys: str) -> str:
        """The key that is present, or the first."""
        return next((key for key in keys if self.has(key)), keys[0])

    def refuse(self, key: str, problem: str) -> None:
        if self.has(key):
            raise self.error(key, problem, self.values[key], "use another model")

    def count(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        key, value = self._find(keys, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}", value)
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        key, value = self._find(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "must be a number", value)
        if not (math.isfinite(value) and value > 0):
            raise self.error(key, "must be positive", value)
        return float(value)

    def text(self, *keys: str, default: str | None = None) -> str:
        key, value = self._find(keys, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a string", value)
        return value

    def flag(self, *keys: str, default: bool | None = None) -> bool:
        key, value = self._find(keys, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false", value)
        return value

    def items(self, key: str) -> Sequence[Any]:
        """A list; empty when absent."""
        key, value = self._find((key,), [])
        if not isinstance(value, list):
            raise self.error(key, "must be a list", value)
        return value

    def section(self, key: str) -> ConfigFile | None:
        """A nested mapping, None when absent or empty."""
        return self.required_section(key) if self.values.get(key) else None

    def required_section(self, key: str) -> ConfigFile:
        key, value = self._find((key,), None)
        if not isinstance(value, dict):
            raise self.error(key, "must be an object", value)
        return ConfigFile(self.file, value, f"{self.prefix}{key}.")

    def _find(self, keys: Sequence[str], default: Any) -> tuple[str, Any]:
        for key in keys:
            if self.has(key):
                return key, self.values[key]
        if default is None:
            raise self.error(keys[0], "missing", fix="use a complete HuggingFace config.json")
        return keys[0], default
