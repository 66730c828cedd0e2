"""YAML files read strictly: one mapping, no duplicate keys, numbers such as 1e6 are numbers."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from blis_py.errors import InputError
from blis_py.yaml_text import SafeLoader


class _Loader(SafeLoader):  # type: ignore[misc]
    pass


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Hashable] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be plain text", key_node.start_mark
            )
        if key in seen:
            raise yaml.constructor.ConstructorError(
                None, None, f"key {key!r} is given twice", key_node.start_mark
            )
        seen.add(key)
    mapping: dict[Hashable, Any] = loader.construct_mapping(node, deep=True)
    return mapping


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Loader.add_implicit_resolver(  # YAML 1.1 reads 1e6 as text
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(?:\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def load_mapping(path: Path) -> dict[str, Any]:
    """The mapping a YAML file consists of.

    Raises:
        InputError: the file cannot be read, is not YAML (with the line), or is not a mapping.
    """
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except OSError as error:
        raise InputError(error.strerror or str(error), file=path, fix="check the path") from error
    except UnicodeDecodeError as error:
        raise InputError("not a UTF-8 text file", file=path, fix="give a YAML file") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = path if mark is None else f"{path}:{mark.line + 1}"
        raise InputError(f"not valid YAML: {error.problem}", file=where, fix="correct the line") from error
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}", file=path) from error
    if not isinstance(data, dict):
        raise InputError("must be a mapping (key: value)", file=path, fix="write one `key: value` per line")
    return data
