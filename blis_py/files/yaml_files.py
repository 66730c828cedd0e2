"""Strict YAML reading: bounded depth and size, no duplicate keys, numbers such as 1e6 are numbers.

The result is plain data as in JSON: mappings, lists, text, numbers, booleans and null. Dates are text, as are
YAML 1.1's base-60 numbers: `1:30`.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from blis_py.errors import InputError
from blis_py.files.opening import read_text

MAX_LEVELS = 64
MAX_NODES = 2_000_000
"""Largest number of nodes, with every alias expanded."""
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader if PyYAML has it: the same data in a tenth of the time."""
_TAG = "tag:yaml.org,2002:"


class _Loader(_Base):  # type: ignore[misc]
    pass


def _error(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _scalar(kind: str, construct: Any) -> Any:
    """The constructor of a scalar: converts errors of int(), float() and similar, which PyYAML lets
    through."""

    def checked(loader: Any, node: yaml.ScalarNode) -> Any:
        try:
            return construct(loader, node)
        except (ValueError, LookupError, ArithmeticError):
            raise _error(f"not a valid {kind}", node) from None

    return checked


def _mapping(loader: Any, node: yaml.MappingNode) -> dict[Hashable, Any]:
    keys_before: set[Hashable] = set()
    for key_node, _ in node.value:
        if key_node.tag == f"{_TAG}merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise _error("a key must be plain text", key_node)
        if key in keys_before:
            raise _error(f"key {str(key)[:100]!r} is given twice", key_node)
        keys_before.add(key)
    mapping: dict[Hashable, Any] = loader.construct_mapping(node, deep=True)
    return mapping


def _resolvers() -> dict[str, list[tuple[str, Any]]]:
    """Resolvers of unquoted scalars, by first letter."""
    own = ("int", "float", "timestamp")
    return {
        first: [(tag, shape) for tag, shape in known if tag.removeprefix(_TAG) not in own]
        for first, known in _Base.yaml_implicit_resolvers.items()
    }


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Quotes text that this loader, or another, would not read as text."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Text in double quotes if it has line ends known only to YAML, which are not escaped otherwise."""
    style = '"' if any(mark in text for mark in "\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


class _ManifestDumper(_Dumper):
    """Dumper without aliases, with texts of several lines as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if "\n" in text:
        return dumper.represent_scalar(f"{_TAG}str", text, style="|")
    return _text(dumper, text)


_Dumper.add_representer(str, _text)
_ManifestDumper.add_representer(str, _block)
_Loader.yaml_implicit_resolvers = _resolvers()
_INT = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)$")
_FLOAT = re.compile(
    r"(?:[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
for _resolving in (_Loader, _Dumper):
    _resolving.add_implicit_resolver(f"{_TAG}int", _INT, list("-+0123456789"))
    _resolving.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))
_Loader.add_constructor(f"{_TAG}map", _mapping)
for _kind in ("bool", "int", "float"):
    _Loader.add_constructor(_TAG + _kind, _scalar(_kind, getattr(_Base, f"construct_yaml_{_kind}")))
_Loader.add_constructor(f"{_TAG}timestamp", _Base.construct_yaml_str)
for _kind in ("binary", "set", "omap", "pairs"):
    _Loader.add_constructor(_TAG + _kind, _Base.construct_undefined)


def load_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        InputError: not readable, not YAML (with the line), or not a mapping.
    """
    return mapping_of(read_text(path), path)


def mapping_of(text: str, path: Path) -> dict[str, Any]:
    """The mapping in the text of a YAML file; raises as `load_mapping`."""
    data = parse_yaml(text, path)
    if not isinstance(data, dict):
        raise InputError("must be a mapping (key: value)", file=path, fix="write one `key: value` per line")
    return data


def parse_yaml(text: str, path: Path | None = None) -> Any:
    """The parsed data; `path` is the origin of the text.

    Raises:
        InputError: not YAML (with the line), nested too deeply, or far too large.
    """
    try:
        _check_extent(text, path)
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InputError(
            f"not valid YAML: {error.problem}", file=_place(path, mark), fix="correct the line"
        ) from None
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {error}", file=path) from None


def dump_yaml(data: Any) -> str:
    """Text that `parse_yaml` reads back as equal data."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def dump_manifest(data: Any) -> str:
    """Text as `dump_yaml` gives, without aliases, and with texts of several lines as blocks."""
    text: str = yaml.dump(data, Dumper=_ManifestDumper, sort_keys=False, allow_unicode=True, width=110)
    return text


def _check_extent(text: str, path: Path | None) -> None:
    """Refuse data that would overflow the loader's stack, or expand excessively through aliases.

    Only the parser's events are read, which takes a quarter of the loading time.
    """
    nodes = deepest = 0
    opened: list[tuple[str | None, int, int]] = []
    """For every open collection: its anchor, and the nodes and deepest level before it."""
    known: dict[str, tuple[int, int]] = {}
    """For every anchor: nodes and levels of its target."""
    event: Any
    for event in yaml.parse(text, Loader=_Loader):
        kind, mark = type(event), event.start_mark
        if kind is yaml.ScalarEvent:
            nodes += 1
            if event.anchor is not None:
                known[event.anchor] = (1, 0)
            continue
        if kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
            opened.append((event.anchor, nodes, deepest))
            nodes += 1
            deepest = len(opened)
        elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
            anchor, before, deepest_before = opened.pop()
            if anchor is not None:
                known[anchor] = (nodes - before, deepest - len(opened))
            deepest = max(deepest, deepest_before)
        elif kind is yaml.AliasEvent:
            if any(anchor == event.anchor for anchor, _, _ in opened):
                raise InputError("contains itself", file=_place(path, mark), key=f"*{event.anchor}")
            size, levels = known.get(event.anchor, (1, 0))
            nodes += size
            deepest = max(deepest, len(opened) + levels)
        if deepest > MAX_LEVELS:
            problem = f"nested more than {MAX_LEVELS} levels deep"
            raise InputError(problem, file=_place(path, mark), fix="is it the right file?")
        if nodes > MAX_NODES:
            problem = f"more than {MAX_NODES:,} values, aliases counted as what they stand for"
            raise InputError(problem, file=_place(path, mark), fix="is it the right file?")


def _place(path: Path | None, mark: Any) -> str | Path | None:
    if path is None or mark is None:
        return path
    return f"{path}:{mark.line + 1}"
