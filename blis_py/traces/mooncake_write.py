"""Writer of Mooncake traces: JSON lines with a hash id for every 512 tokens of a prompt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from blis_py.requests.table import Content, RequestTable
from blis_py.traces.files import writing
from blis_py.traces.mooncake import BLOCK_TOKENS, MS_NS


def write(table: RequestTable, path: Path) -> None:
    """Write a table; blocks have equal ids if all tokens up to their end are equal."""
    blocks = _Blocks()
    columns = (table.arrival_ns, table.prompt_tokens, table.output_tokens, table.content)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    with writing(path) as text:
        for row, (arrival_ns, prompt, output, content) in enumerate(rows):
            runs = table.contents[content] if content >= 0 else ()
            line = {
                "timestamp": _in_ms(arrival_ns),
                "input_length": prompt,
                "output_length": output,
                "hash_ids": list(blocks.of(runs, prompt)),
            }
            if table.request_id is not None:
                line["request_id"] = table.request_id[row]
            text.write(json.dumps(line, separators=(",", ":")) + "\n")


def _in_ms(time_ns: int) -> int | float:
    return time_ns // MS_NS if time_ns % MS_NS == 0 else time_ns / MS_NS


class _Blocks:
    """Block ids: one for every distinct prompt prefix that ends with a block."""

    def __init__(self) -> None:
        self._ids: dict[Content, int] = {}
        self._new = count()

    def of(self, runs: Content, prompt_tokens: int) -> Iterator[int]:
        """Ids of a prompt with these shared runs; unshared blocks get unique ids."""
        shared = min(sum(tokens for _, tokens in runs), prompt_tokens)
        for end in range(BLOCK_TOKENS, prompt_tokens + BLOCK_TOKENS, BLOCK_TOKENS):
            if end > shared and not (end >= prompt_tokens == shared):
                yield next(self._new)
                continue
            beginning = _first_tokens(runs, min(end, prompt_tokens))
            if beginning not in self._ids:
                self._ids[beginning] = next(self._new)
            yield self._ids[beginning]


def _first_tokens(runs: Content, tokens: int) -> Content:
    """The runs, cut off after `tokens` tokens."""
    kept = []
    for segment, length in runs:
        if tokens <= 0:
            break
        kept.append((segment, min(length, tokens)))
        tokens -= length
    return tuple(kept)
