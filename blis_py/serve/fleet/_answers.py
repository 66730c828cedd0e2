"""Answers of a simulated fleet: text of a known length, made when the request arrives."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from zlib import crc32

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import read_text
from blis_py.serve.backend import Sampling
from blis_py.serve.errors import ApiError
from blis_py.serve.fleet._example import smallest
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
            text = _formed(sampling.structured_outputs, limit * self._tokenizer.longest)
            pieces = self._pieces(text)
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
    hits = [hit for hit in (_stop_token(ids, sampling), _stop_text(pieces, sampling)) if hit is not None]
    if not hits:
        return MadeUpAnswer(ids, pieces, finish)
    number, end, reason = min(hits, key=lambda hit: hit[0])
    return MadeUpAnswer(ids[:number], _cut(pieces[:number], end), "stop", reason)


_Hit = tuple[int, int, int | str]
"""Tokens up to an end, characters before it, and its reason."""


def _stop_token(ids: list[int], sampling: Sampling) -> _Hit | None:
    stops = frozenset(sampling.stop_token_ids)
    first = max(sampling.min_tokens - 1, 0)
    number = next((n for n in range(first, len(ids)) if ids[n] in stops), None) if stops else None
    return None if number is None else (number + 1, -1, ids[number])


def _stop_text(pieces: list[str], sampling: Sampling) -> _Hit | None:
    """The first stop string that ends in no token before `min_tokens`."""
    text, ends = "".join(pieces), list(accumulate(map(len, pieces)))
    spared = ends[sampling.min_tokens - 2] if 2 <= sampling.min_tokens <= len(ends) + 1 else 0
    hits = []
    for stop in sampling.stop:
        place = text.find(stop, max(spared - len(stop) + 1, 0))
        if place >= 0:
            number = bisect_left(ends, place + len(stop)) + 1
            end = place + len(stop) * sampling.include_stop_str_in_output
            hits.append((number, place, end, stop))
    if not hits:
        return None
    number, _, end, stop = min(hits)
    return number, end, stop


def _cut(pieces: list[str], end: int) -> list[str]:
    """Pieces whose text ends at a character, or before the last of them (-1); the last ones may be empty."""
    if end < 0:
        return [*pieces[:-1], ""]
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


def _formed(form: Mapping[str, Any], most: int) -> str:
    """A text of the wanted form, made no further than so many characters."""
    if form.get("choice"):
        return _choice(form["choice"])
    if "json" in form:
        schema = form["json"]
        try:
            schema = parse_json(schema) if isinstance(schema, str) else schema
        except InputError as error:
            raise ApiError(400, f"is no JSON schema: {error}", "response_format") from error
        return smallest(schema, most)
    if form.get("json_object"):
        return '{"answer": "value"}'
    kind = next(iter(form))
    raise ApiError(400, f"a simulated fleet does not make up text for {kind}", "structured_outputs")


def _choice(choices: Any) -> str:
    if not isinstance(choices, list) or not isinstance(choices[0], str) or not choices[0]:
        raise ApiError(400, "must be a list of texts", "structured_outputs.choice")
    return choices[0]
