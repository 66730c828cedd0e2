"""The smallest text of a JSON schema, made in pieces: no schema costs more than the text that is used."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from blis_py.serve.errors import ApiError

_LEVELS = 64


def smallest(schema: Any, most: int) -> str:
    """The smallest value of a schema as JSON, up to the piece with the last wanted character.

    Raises:
        ApiError: no schema, nested deeper than 64 levels, or one that refers to itself.
    """
    parts, length = [], 0
    for part in _text(schema, schema, 0):
        parts.append(part)
        length += len(part)
        if length > most:
            break
    return "".join(parts)


def _text(schema: Any, root: Any, depth: int) -> Iterator[str]:
    if depth > _LEVELS:
        raise _refused("is nested too deeply")
    if not isinstance(schema, Mapping):
        if schema is not True:
            raise _refused("has a part that is no schema, or allows nothing")
        yield "null"
        return
    if "$ref" in schema:
        yield from _text(_referred(schema["$ref"], root), root, depth + 1)
        return
    for key in ("const", "default"):
        if key in schema:
            yield json.dumps(schema[key])
            return
    if "enum" in schema:
        yield json.dumps(_first(schema, "enum"))
        return
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            yield from _text(_first(schema, key), root, depth + 1)
            return
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = _first(schema, "type") if isinstance(kind, list) else kind
    yield from _of_type(kind, schema, root, depth)


def _of_type(kind: Any, schema: Mapping[str, Any], root: Any, depth: int) -> Iterator[str]:
    if kind == "object":
        yield from _object(schema, root, depth)
    elif kind == "array":
        yield from _array(schema, root, depth)
    elif kind in ("integer", "number"):
        yield json.dumps(_number(schema))
    elif kind == "string":
        yield from _string(max(_count(schema, "minLength", 5), 1))
    elif kind in ("boolean", "null"):
        yield "true" if kind == "boolean" else "null"
    else:
        raise _refused(f"has a type that JSON does not have: {str(kind)[:40]}")


def _object(schema: Mapping[str, Any], root: Any, depth: int) -> Iterator[str]:
    members = schema.get("properties", {})
    if not isinstance(members, Mapping):
        raise _refused("has properties that are no object")
    names = schema.get("required", list(members))
    if not isinstance(names, list) or not set(map(type, names)) <= {str}:
        raise _refused("has a list of required properties that is none")
    before = "{"
    for name in dict.fromkeys(names):
        yield f"{before}{json.dumps(name)}: "
        yield from _text(members.get(name, {}), root, depth + 1)
        before = ", "
    yield "{}" if before == "{" else "}"


def _array(schema: Mapping[str, Any], root: Any, depth: int) -> Iterator[str]:
    yield "["
    for number in range(_count(schema, "minItems", 1)):
        if number:
            yield ", "
        yield from _text(schema.get("items", {}), root, depth + 1)
    yield "]"


def _string(characters: int) -> Iterator[str]:
    yield '"'
    while characters > 0:
        yield "x" * min(characters, 1024)
        characters -= 1024
    yield '"'


def _number(schema: Mapping[str, Any]) -> int | float:
    for key, more in (("minimum", 0), ("exclusiveMinimum", 1)):
        value = schema.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise _refused(f"has a {key} that is no number")
        if value is not None:
            if not math.isfinite(value):
                raise _refused(f"has a {key} that is not finite")
            return value + more
    return 0


def _count(schema: Mapping[str, Any], key: str, default: int) -> int:
    value = schema.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _refused(f"has a {key} that is no count")
    return value


def _first(schema: Mapping[str, Any], key: str) -> Any:
    values = schema[key]
    if not isinstance(values, list) or not values:
        raise _refused(f"has a list of {key} that is none")
    return values[0]


def _referred(name: Any, root: Any) -> Any:
    node = root
    for part in str(name).removeprefix("#").strip("/").split("/"):
        part = part.replace("~1", "/").replace("~0", "~")
        node = node if not part else node.get(part) if isinstance(node, Mapping) else None
    if node is None:
        raise _refused(f"refers to {str(name)[:100]}, which is not there")
    return node


def _refused(problem: str) -> ApiError:
    return ApiError(400, problem, "response_format")
