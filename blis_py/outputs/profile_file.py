"""`profile.yaml`: measurement metadata at its top level, and the fit under `fit`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml, load_mapping
from blis_py.outputs.staging import write_text

FILE = "profile.yaml"


def write_meta(folder: str | Path, meta: Mapping[str, Any]) -> Path:
    """Write the measurement metadata; an existing fit is kept until it is replaced."""
    try:
        fit = load_mapping(Path(folder) / FILE).get("fit")
    except InputError:  # missing or damaged
        fit = None
    return write_with_fit(folder, meta, fit)


def write_with_fit(folder: str | Path, meta: Mapping[str, Any], fit: Mapping[str, Any] | None) -> Path:
    """Write both into the folder, creating it if necessary; return the path of the file."""
    values = {key: value for key, value in meta.items() if key != "fit"}
    values |= {} if fit is None else {"fit": fit}
    path = Path(folder) / FILE
    write_text(path, dump_yaml(values))
    return path
