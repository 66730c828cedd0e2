"""A run that was saved, simulated again: same configuration, same seed, and the same figures, or a word on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.json_files import load_object
from blis_py.files.paths import exists, is_folder
from blis_py.outputs.complete import check_complete

CONFIG, SUMMARY = "config.yaml", "summary.json"
_FIGURES = ("cluster", "classes", "tenants")
"""Parts of a summary that have to be the same."""
_SHOWN = 3


def saved_config(folder: str | Path) -> RunConfig:
    """What a saved run simulated.

    Raises:
        InputError: no folder, not that of a simulated run, or not all of it.
    """
    path = Path(folder)
    if not is_folder(path):
        fix = "name the folder of a run, as given to --out"
        raise InputError("no such folder", file=path, fix=fix)
    check_complete(path)
    for name in (CONFIG, SUMMARY):
        if not exists(path / name):
            fix = "name the folder that a run was told with --out"
            raise InputError(f"this is no simulated run: it has no {name}", file=path, fix=fix)
    return load_config(path / CONFIG)


def saved_summary(folder: str | Path) -> dict[str, Any]:
    """Its figures."""
    return load_object(Path(folder) / SUMMARY, fix="is it the folder of a run?")


def differences(saved: Mapping[str, Any], again: Mapping[str, Any]) -> str | None:
    """What the run simulated again does not reproduce, in a few words; None = everything is the same."""
    found = [
        f"{path} was {_figure(one)} and is {_figure(other)}"
        for part in _FIGURES
        for path, one, other in _different(saved.get(part), again.get(part), part)
    ]
    if not found:
        return None
    more = f", and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return f"{'; '.join(found[:_SHOWN])}{more}"


def _different(one: Any, other: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in {**one, **other}:
            yield from _different(one.get(key), other.get(key), f"{path}.{key}")
    elif one != other:
        yield path, one, other


def _figure(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
