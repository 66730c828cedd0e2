"""`profile.yaml`: what was measured at its top level, and under `fit` what was made of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml, load_mapping
from blis_py.outputs.staging import write_text

FILE = "profile.yaml"


def write_meta(folder: str | Path, meta: Mapping[str, Any]) -> Path:
    """Write what was measured; the fit that the file has stays until there is another."""
    try:
        fit = load_mapping(Path(folder) / FILE).get("fit")
    except InputError:  # there is none, or it is damaged
        fit = None
    return write_with_fit(folder, meta, fit)


def write_with_fit(folder: str | Path, meta: Mapping[str, Any], fit: Mapping[str, Any] | None) -> Path:
    """Write both into the folder, which is made where it does not exist; returns the path of the file."""
    values = {key: value for key, value in meta.items() if key != "fit"}
    values |= {} if fit is None else {"fit": fit}
    path = Path(folder) / FILE
    write_text(path, dump_yaml(values))
    return path
