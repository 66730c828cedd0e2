"""Errors of a workload spec in one sentence, with file and key."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ValidationError

from blis_py.errors import InputError


def input_error(error: ValidationError, root: type[BaseModel], path: Path) -> InputError:
    """The first problem in a file described by `root`."""
    first = min(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    location = first["loc"]
    key = _dotted(location)
    if first["type"] == "extra_forbidden":
        return InputError("unknown key", file=path, key=key, fix=_nearest(location, root))
    if first["type"] == "missing":
        return InputError("missing key", file=path, key=key, fix="add it")
    problem = (
        first["msg"]
        .replace("Input should be", "must be")
        .replace("a valid tuple", "a list")
        .replace("a valid", "a")
    )
    value = first["input"] if isinstance(first["input"], (str, int, float, bool)) else None
    return InputError(problem, file=path, key=key, value=value)


def _dotted(location: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return text.removeprefix(".")


def _nearest(location: tuple[int | str, ...], root: type[BaseModel]) -> str:
    """Suggestion for an unknown key, from the model in which it occurs."""
    model = root
    for part in location[:-1]:
        if isinstance(part, str):
            annotation = model.model_fields[part].annotation
            inner = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
            model = next((kind for kind in inner if issubclass(kind, BaseModel)), model)
    near = difflib.get_close_matches(str(location[-1]), model.model_fields, 1)
    return f"did you mean {near[0]}?" if near else f"use one of {', '.join(model.model_fields)}"
