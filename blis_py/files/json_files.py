"""Strict JSON reading: bounded depth, no duplicate keys, valid text."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.opening import read_text

MAX_LEVELS = 64


def load_object(path: Path, *, fix: str = "is it the right file?") -> dict[str, Any]:
    """The JSON object in a file; `fix` is the remedy in errors.

    Raises:
        InputError: an unreadable file, invalid JSON, too deep nesting, or not an object.
    """
    data = parse_json(read_text(path), path, fix=fix)
    if not isinstance(data, dict):
        raise InputError("must be a JSON object", file=path, fix=fix)
    return data


def parse_json(text: str, place: str | Path | None = None, *, fix: str | None = None) -> Any:
    """The parsed value; `place` is the origin of the text, `fix` the remedy for invalid JSON.

    Raises:
        InputError: invalid JSON, or nested too deeply.
    """
    try:
        value = json.loads(text)
        if not (type(value) is dict and len(value) == text.count(":")):  # as many keys as colons
            value = json.loads(text, object_pairs_hook=_object)
        if text.count("[") + text.count("{") > MAX_LEVELS:
            _check_depth(value)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InputError("not JSON: half a pair of surrogates", file=place, fix=fix) from None
    except RecursionError:
        problem = f"nested more than {MAX_LEVELS} levels deep"
        raise InputError(problem, file=place, fix="is it the right file?") from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}", file=place, fix=fix) from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"key {twice[:100]!r} is given twice")
    return values


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_LEVELS):
        inner: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return
    raise RecursionError
