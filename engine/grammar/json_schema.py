"""JSON schemas that can be enforced exactly.

xgrammar ignores some keywords, and others in certain combinations. Its outputs could then violate the schema,
so such schemas are refused. Keywords that it would misinterpret are rewritten.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from engine.grammar.regex import as_compiled

_BOUNDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_OF_TYPE: dict[str, set[str]] = {
    "object": {
        "properties",
        "required",
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    },
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": _BOUNDS | {"multipleOf"},
    "number": _BOUNDS,
    "boolean": set(),
    "null": set(),
}
_ALONE = ("$ref", "anyOf", "allOf", "const", "enum")
"""Keywords that must stand alone: the compiler ignores any beside them."""
_SILENT = {
    *("$schema", "$id", "$comment", "$defs", "definitions", "title", "description", "default", "examples"),
    *("deprecated", "readOnly", "writeOnly"),
}
"""Annotations without effect on validity."""
_FORMATS = {
    *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"),
    *("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
}


def enforceable(text: str) -> str:
    """The schema in the form passed to the compiler.

    Raises:
        InputError: text that is not JSON, or a schema that cannot be enforced.
    """
    try:
        schema = parse_json(text)
    except InputError as error:
        problem = error.problem.removeprefix("not JSON: ")
        raise InputError(f"is not JSON: {problem}", key="structured_outputs.json", value=text) from None
    try:
        _check(schema, "json")
    except (TypeError, AttributeError, RecursionError) as error:
        raise InputError(
            f"is not a JSON schema: {error}", key="structured_outputs.json", value=text
        ) from None
    return json.dumps(schema)


def _check(schema: Any, path: str) -> None:
    """Check a schema, and rewrite it in place for the compiler."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise _error(path, "must be an object", schema)
    alone = next((key for key in _ALONE if key in schema), None)
    if alone is not None:
        _check_alone(schema, alone, path)
    else:
        _check_typed(schema, path)
    for place, inner in _inner(schema):
        _check(inner, f"{path}.{place}")


def _check_alone(schema: dict[str, Any], alone: str, path: str) -> None:
    values = {"const": [schema.get("const")], "enum": schema.get("enum")}.get(alone)
    beside = {"type"} if values is not None else set()
    _only(schema, {alone} | beside, path, f"would be overlooked beside {alone}")
    if "type" in schema and values is not None:
        types = _types(schema, path)
        for value in values:
            if not any(_is(value, name) for name in types):
                raise _error(f"{path}.{alone}", f"has a value that is no {' or '.join(types)}", value)
    if alone == "$ref" and not str(schema["$ref"]).startswith("#"):
        raise _error(f"{path}.$ref", "leads out of the schema", schema["$ref"])
    if alone == "allOf" and len(schema["allOf"]) != 1:
        raise _error(f"{path}.allOf", "has several parts, which cannot be enforced together", None)


def _check_typed(schema: dict[str, Any], path: str) -> None:
    types = _types(schema, path)
    allowed = set[str]().union({"type"}, *(_OF_TYPE[name] for name in types))
    given = f"cannot be enforced for type {' or '.join(types)}" if types else "needs a type beside it"
    _only(schema, allowed, path, given)
    if ("pattern" in schema or "format" in schema) and ("minLength" in schema or "maxLength" in schema):
        raise _error(path, "has lengths beside a pattern or format, which would be overlooked", None)
    if "pattern" in schema and "format" in schema:
        raise _error(path, "has a pattern beside a format, one of which would be overlooked", None)
    if schema.get("format", "date") not in _FORMATS:
        raise _error(f"{path}.format", "is not a format that can be enforced", schema["format"])
    for name in schema.get("required", ()):
        if name not in schema.get("properties", {}):
            raise _error(f"{path}.required", "is not among the properties", name)
    _reword(schema, path)
    if "minProperties" in schema and any(
        schema.get(key, False) is not False for key in ("additionalProperties", "patternProperties")
    ):
        raise _error(f"{path}.minProperties", "would count a name twice that is free to choose", None)


def _reword(schema: dict[str, Any], path: str) -> None:
    """Rewrite string lengths as a pattern: lengths alone would allow control characters, which JSON
    forbids."""
    if "minLength" in schema or "maxLength" in schema:
        least, most = schema.pop("minLength", 0), schema.pop("maxLength", "")
        schema["pattern"] = f"^.{{{least},{most}}}$"
    elif "pattern" in schema:
        schema["pattern"] = as_compiled(schema["pattern"], f"structured_outputs.{path}.pattern")
    if "patternProperties" in schema:
        key = f"structured_outputs.{path}.patternProperties"
        schema["patternProperties"] = {
            as_compiled(name, key): inner for name, inner in schema["patternProperties"].items()
        }


def _only(schema: dict[str, Any], allowed: set[str], path: str, problem: str) -> None:
    for key in schema:
        if key not in allowed and key not in _SILENT:
            raise _error(f"{path}.{key}", problem, schema[key])


def _types(schema: dict[str, Any], path: str) -> list[str]:
    given = schema.get("type", [])
    types = [given] if isinstance(given, str) else list(given)
    for name in types:
        if name not in _OF_TYPE:
            raise _error(f"{path}.type", f"is none of {', '.join(_OF_TYPE)}", name)
    return types


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool) or value is None:
        return name == ("null" if value is None else "boolean")
    kinds: dict[str, Any] = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float)
    }  # fmt: skip
    return isinstance(value, kinds.get(name, ()))


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Subschemas with their paths."""
    for key in ("$defs", "definitions", "properties", "patternProperties"):
        for name, inner in schema.get(key, {}).items():
            yield f"{key}.{name}", inner
    for key in ("items", "additionalProperties", "propertyNames"):
        if key in schema:
            yield key, schema[key]
    for key in ("anyOf", "allOf", "prefixItems"):
        for i, inner in enumerate(schema.get(key, ())):
            yield f"{key}.{i}", inner


def _error(path: str, problem: str, value: Any) -> InputError:
    shown = None if value is None else json.dumps(value)[:80]
    fix = "leave it out, and check the output for it; see the guide for what can be enforced"
    return InputError(problem, key=f"structured_outputs.{path}", value=shown, fix=fix)
