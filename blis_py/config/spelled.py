"""A setting as a user types it: the flag with its value, or `--set` where it has none."""

from __future__ import annotations

import shlex
from dataclasses import fields
from functools import cache
from typing import Any

from blis_py.config.models import SECTIONS, RunConfig
from blis_py.core.settings import Spelling, extended


@cache
def _spellings() -> dict[str, Spelling]:
    """The spelling of every setting that has one, by dotted key."""
    spellings = {}
    models: dict[str, type[Any]] = {"": RunConfig, **{f"{name}.": each for name, each in SECTIONS.items()}}
    for prefix, model in models.items():
        for each in fields(extended(model)):
            spelling: Spelling | None = each.metadata.get("spelling")
            if spelling is not None:
                spellings[f"{prefix}{each.name}"] = spelling
    return spellings


def as_typed(key: str, value: Any) -> str:
    """The flag that gives a setting this value; `--set KEY=VALUE` where there is none."""
    spelling = _spellings().get(key)
    if spelling is not None and value is True:
        return spelling.flag
    if spelling is not None and value is False and spelling.off:
        return spelling.off
    text = in_words(value)
    if spelling is None or value is None or isinstance(value, bool | dict | list | tuple):
        return f"--set {shlex.quote(f'{key}={text}')}"
    return f"{spelling.flag} {text}"


def in_words(value: Any) -> str:
    """A value as it is typed."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
