"""Answers of a simulated fleet: text of a known length, made when the request arrives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import read_text
from blis_py.serve.backend import Sampling
from blis_py.serve.errors import ApiError
from blis_py.serve.fleet._tokens import FleetTokenizer

_WORDS = (
    " the queue drains in order and every batch is formed from what waits"
    " while blocks are freed as soon as an answer ends"
)
MODES = ("pattern", "echo", "file")


@dataclass(frozen=True, slots=True)
class MadeUpAnswer:
    """An answer, token by token."""

    ids: Sequence[int]
    pieces: Sequence[str]
    finish_reason: str
    stop_reason: int | str | None = None

    def __len__(self) -> int:
        return len(self.pieces)


class Answers:
    """Answers of one fleet.

    Args:
        mode: `pattern`, `echo`, or `file`, whose lines are answered in turn.
        file: of that mode.
        tokens: length of an answer that no request limits.

    Raises:
        InputError: an unknown mode, or a file without lines.
    """

    def __init__(
        self, tokenizer: FleetTokenizer, mode: str = "pattern", file: str | None = None, tokens: int = 128
    ) -> None:
        if mode not in MODES:
            raise InputError("unknown mode", key="--text", value=mode, fix=f"use one of {', '.join(MODES)}")
        self._tokenizer, self._mode, self.tokens = tokenizer, mode, tokens
        self._pattern = self._pieces(_WORDS)
        self._lines = [self._pieces(line) for line in _lines(file)] if mode == "file" else []
        self._next_line = 0

    def _pieces(self, text: str) -> list[tuple[int, str]]:
        """Tokens of a text, each with its part of the text."""
        encode, text_of = self._tokenizer.encode, self._tokenizer.decode
        return [(token, text_of([token])) for token in encode(text, False)]

    def answer(self, prompt_ids: Sequence[int], sampling: Sampling, room: int) -> MadeUpAnswer:
        """The answer to a prompt.

        Args:
            room: tokens that the context leaves.
        """
        limit = min(room, sampling.max_tokens or room)
        if sampling.structured_outputs is not None:
            pieces = self._pieces(_formed(sampling.structured_outputs))
            return _ended(pieces[:limit], "length" if len(pieces) > limit else "stop", sampling)
        if self._mode == "pattern":
            return self._patterned(prompt_ids, sampling, limit)
        pieces = self._echoed(prompt_ids) if self._mode == "echo" else self._line()
        count = limit if sampling.ignore_eos and sampling.max_tokens else min(len(pieces), limit)
        count = max(count, min(sampling.min_tokens, limit), 1)
        pieces = (pieces * (count // max(len(pieces), 1) + 1))[:count]
        return _ended(pieces, "length" if count == limit else "stop", sampling)

    def _patterned(self, prompt_ids: Sequence[int], sampling: Sampling, limit: int) -> MadeUpAnswer:
        """The requested maximum of tokens, or the usual number."""
        usual = max(self.tokens, sampling.min_tokens)
        count = limit if sampling.max_tokens else min(usual, limit)
        start = crc32(repr((tuple(prompt_ids[-64:]), sampling.seed)).encode()) % len(self._pattern)
        pieces = (self._pattern * (count // len(self._pattern) + 2))[start : start + count]
        return _ended(pieces, "length" if count == limit else "stop", sampling)

    def _echoed(self, prompt_ids: Sequence[int]) -> list[tuple[int, str]]:
        return [(token, self._tokenizer.decode([token])) for token in prompt_ids]

    def _line(self) -> list[tuple[int, str]]:
        line = self._lines[self._next_line % len(self._lines)]
        self._next_line += 1
        return line


def _ended(tokens: list[tuple[int, str]], finish: str, sampling: Sampling) -> MadeUpAnswer:
    """The answer up to the first stop string or stop token."""
    ids, pieces = [token for token, _ in tokens], [text for _, text in tokens]
    if not (sampling.stop or sampling.stop_token_ids):
        return MadeUpAnswer(ids, pieces, finish)
    text = ""
    for number, (token, piece) in enumerate(tokens, 1):
        text += piece
        if number < sampling.min_tokens:
            continue
        if token in sampling.stop_token_ids:
            return MadeUpAnswer(ids[:number], [*pieces[: number - 1], ""], "stop", token)
        hit = min(((place, stop) for stop in sampling.stop if (place := text.find(stop)) >= 0), default=None)
        if hit is not None:
            place, stop = hit
            end = place + len(stop) * sampling.include_stop_str_in_output
            return MadeUpAnswer(ids[:number], _cut(pieces[:number], max(end, 0)), "stop", stop)
    return MadeUpAnswer(ids, pieces, finish)


def _cut(pieces: list[str], end: int) -> list[str]:
    """Pieces whose text ends at a character; the last ones may be empty."""
    kept, at = [], 0
    for piece in pieces:
        kept.append(piece[: max(end - at, 0)])
        at += len(piece)
    return kept


def _lines(file: str | None) -> list[str]:
    if file is None:
        raise InputError("needs a file", key="--text", value="file", fix="add --text-file FILE")
    lines = [line for line in read_text(Path(file)).splitlines() if line.strip()]
    if not lines:
        raise InputError("has no lines", file=file, key="--text-file", fix="write one answer per line")
    return lines


def _formed(form: Mapping[str, Any]) -> str:
    """A text of the wanted form."""
    if form.get("choice"):
        return str(form["choice"][0])
    if "json" in form:
        schema = form["json"]
        try:
            schema = parse_json(schema) if isinstance(schema, str) else schema
        except InputError as error:
            raise ApiError(400, f"is no JSON schema: {error}", "response_format") from error
        return json.dumps(example(schema))
    if form.get("json_object"):
        return '{"answer": "value"}'
    kind = next(iter(form))
    raise ApiError(400, f"a simulated fleet does not make up text for {kind}", "structured_outputs")


def example(schema: Any, root: Any = None, depth: int = 0) -> Any:
    """The smallest value of a JSON schema.

    Raises:
        ApiError: a schema nested deeper than 64 levels, or one that refers to itself.
    """
    root = schema if root is None else root
    if depth > 64:
        raise ApiError(400, "is nested too deeply", "response_format")
    if not isinstance(schema, Mapping):
        return None
    if "$ref" in schema:
        return example(_referred(schema["$ref"], root), root, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example(schema[key][0], root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    return _of_type(kind[0] if isinstance(kind, list) else kind, schema, root, depth)


def _of_type(kind: str, schema: Mapping[str, Any], root: Any, depth: int) -> Any:
    if kind == "object":
        members = schema.get("properties", {})
        required = schema.get("required", list(members))
        return {name: example(members.get(name, {}), root, depth + 1) for name in required}
    if kind == "array":
        return [example(schema.get("items", {}), root, depth + 1)] * max(schema.get("minItems", 1), 0)
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + ("exclusiveMinimum" in schema))
        return least
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return "x" * max(schema.get("minLength", 5), 1)


def _referred(name: Any, root: Any) -> Any:
    node = root
    for part in str(name).removeprefix("#/").split("/"):
        node = node.get(part) if isinstance(node, Mapping) else None
    if node is None:
        raise ApiError(400, f"refers to {name}, which is not there", "response_format")
    return node
