"""Makes bad files out of good ones: by bytes, by cells and by what a YAML or JSON text says."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "-0",
        "+5",
        "0.5",
        "1.5",
        "-1.5",
        "1e6",
        "1e-6",
        "1e-320",
        "1e308",
        "-1e308",
        "1e400",
    ),
    *(
        "nan",
        "NaN",
        "inf",
        "-inf",
        ".nan",
        ".inf",
        "2147483648",
        "4611686018427387904",
        "9223372036854775807",
    ),
    *(
        "9223372036854775808",
        "18446744073709551616",
        "9" * 30,
        "9" * 5000,
        "1" + "0" * 400,
        "0x10",
        "010",
        "0b1",
    ),
    *("1_000", "1,000", "١٢", "1 000", "1:30", "١", "1e", "e5", "--5", "1.2.3", "1/2", "5%", "NULL"),
)
TEXTS = (
    *(
        "",
        " ",
        "null",
        "~",
        "true",
        "false",
        "yes",
        "[]",
        "{}",
        "[1]",
        "{a: 1}",
        "- a",
        "*a",
        "&a b",
        "!!int x",
    ),
    *(
        "!!float y",
        "!!binary ###",
        "!!python/object:os.system x",
        "!!timestamp z",
        "2023-02-30",
        "9999-12-31",
    ),
    *("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:46+02:00", "=1+1", "+cmd", "@x", "-", "'", '"', "'=1"),
    *(
        '"',
        "'",
        "\\",
        "\\ud800",
        '"\\ud800"',
        "\x00",
        "\x07",
        "\x1b[31m",
        "\u2028",
        "\ufeff",
        "é",
        "😀",
        "\xa0",
    ),
    *(
        "a" * 300,
        "a" * 5000,
        "../../etc/passwd",
        "/dev/zero",
        "/nowhere",
        "~nobody/x",
        "%s%n",
        "None",
        "standard",
    ),
    *(
        "gold",
        "critical",
        "x,y",
        "x\ny",
        "x\r\ny",
        "\t",
        "---",
        "...",
        "#",
        "? - - -",
        "[" * 200,
        "{a: " * 100,
    ),
    *("weighted", "distribution", "chatbot", "llama-3.1-8b", "h100", "linear", "fitted", "diffusion"),
)
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        10**6,
        2**31,
        2**63 - 1,
        2**63,
        2**70,
        10**400,
        0.5,
        1e-320,
        1e308,
        -1e308,
    ),
    *(
        float("inf"),
        float("-inf"),
        float("nan"),
        "",
        "x",
        "gold",
        "critical",
        "1e6",
        "-5s",
        "60s",
        "\x00",
        "=1",
    ),
    *(
        "a" * 400,
        "é😀",
        [],
        {},
        [1],
        [[]],
        [{}],
        {"a": 1},
        {"": None},
        {1: 2},
        [None],
        ["x", 1],
        {"x": [1, {"y": 2}]},
    ),
    *("/dev/zero", "/nowhere/x", "../x", "~nobody", "ttft.p99=1ms", "default"),
)
TOKENS = (
    *(token.encode("utf-8", "surrogatepass") for token in (*NUMBERS, *TEXTS)),
    *(b"\xff\xfe", b"\x80", b"\r"),
)
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")
_WORD = re.compile(rb"[A-Za-z_]{2,}")

Mutation = Callable[[Random, bytes], bytes]


def mutated(rng: Random, good: bytes, name: str) -> bytes:
    """A file that may be bad; a few changes to a good one of that name."""
    structured = {".yaml": _yaml, ".json": _json, ".csv": _csv, ".jsonl": _jsonl}.get(
        "." + name.rsplit(".", 1)[-1]
    )
    data = good
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        change = structured if structured is not None and rng.random() < 0.55 else rng.choice(_BYTES)
        try:
            data = change(rng, data)
        except Exception:  # what is no YAML any more cannot be changed as YAML
            data = _insert(rng, data)
    return rng.choice(_WHOLE)(rng, data) if rng.random() < 0.06 else data


# -- bytes ---------------------------------------------------------------------------------------------


def _truncate(rng: Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _flip(rng: Random, data: bytes) -> bytes:
    if not data:
        return b"\0"
    place = rng.randrange(len(data))
    return data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :]


def _insert(rng: Random, data: bytes) -> bytes:
    place = rng.randrange(len(data) + 1)
    return data[:place] + rng.choice(TOKENS) + data[place:]


def _delete(rng: Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randrange(1, 30) :]


def _repeat(rng: Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randrange(1, 60)]
    return data[:start] + piece * rng.choice((2, 3, 50)) + data[start:]


def _number(rng: Random, data: bytes) -> bytes:
    return _replace(rng, data, _NUMBER, rng.choice(TOKENS))


def _word(rng: Random, data: bytes) -> bytes:
    words = [match.group() for match in _WORD.finditer(data)] or [b"x"]
    return _replace(rng, data, _WORD, rng.choice((rng.choice(TOKENS), rng.choice(words))))


def _replace(rng: Random, data: bytes, what: re.Pattern[bytes], by: bytes) -> bytes:
    found = list(what.finditer(data))
    if not found:
        return _insert(rng, data)
    match = rng.choice(found)
    return data[: match.start()] + by + data[match.end() :]


def _lines(rng: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = rng.choice(
        ((lines[other], lines[one]), (lines[other], lines[other]), (b"", lines[one]))
    )
    return b"\n".join(lines)


_BYTES: tuple[Mutation, ...] = (
    _truncate,
    _flip,
    _insert,
    _delete,
    _repeat,
    _number,
    _number,
    _word,
    _word,
    _lines,
)
_WHOLE: tuple[Mutation, ...] = (
    lambda rng, data: gzip.compress(data, mtime=0),
    lambda rng, data: _truncate(rng, gzip.compress(data, mtime=0)),
    lambda rng, data: _flip(rng, gzip.compress(data, mtime=0)),
    lambda rng, data: gzip.compress(data, mtime=0) + b"more",
    lambda rng, data: data.decode("utf-8", "replace").encode("utf-16"),
    lambda rng, data: b"\xef\xbb\xbf" + data,
    lambda rng, data: data.replace(b"\n", b"\r\n"),
    lambda rng, data: data.replace(b"\n", b"\r"),
    lambda rng, data: b"",
    lambda rng, data: bytes(rng.randrange(256) for _ in range(rng.randrange(200))),
    lambda rng, data: b"[" * 100_000,
    lambda rng, data: b'{"a":' * 50_000,
    lambda rng, data: data * 3,
)

# -- what a text says ----------------------------------------------------------------------------------


def _yaml(rng: Random, data: bytes) -> bytes:
    tree = yaml.safe_load(data.decode())
    return yaml.safe_dump(_changed(rng, tree), sort_keys=False, allow_unicode=True).encode()


def _json(rng: Random, data: bytes) -> bytes:
    return json.dumps(_changed(rng, json.loads(data)), default=str, skipkeys=True).encode()


def _jsonl(rng: Random, data: bytes) -> bytes:
    lines = data.splitlines() or [b"{}"]
    place = rng.randrange(len(lines))
    lines[place] = _json(rng, lines[place])
    return b"\n".join(lines)


def _changed(rng: Random, tree: Any) -> Any:
    """The tree with one place changed: given another value, left out, doubled under another name."""
    places = list(_places(tree))
    if not places:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    action = rng.random()
    if action < 0.6:
        holder[key] = rng.choice(VALUES)
    elif action < 0.75:
        del holder[key]
    elif action < 0.9:
        other = rng.choice(places)
        holder[key] = other[0].get(other[1]) if isinstance(other[0], dict) else None
    elif isinstance(holder, dict):
        holder[rng.choice(("x", "", 1, None, "gold", str(key) + "s", "a" * 200))] = rng.choice(VALUES)
    else:
        holder.append(rng.choice(VALUES))
    return tree


def _places(tree: Any, depth: int = 0) -> Any:
    if depth > 12:
        return
    if isinstance(tree, dict):
        for key, value in list(tree.items()):
            yield tree, key
            yield from _places(value, depth + 1)
    elif isinstance(tree, list):
        for index, value in enumerate(list(tree)):
            yield tree, index
            yield from _places(value, depth + 1)


def _csv(rng: Random, data: bytes) -> bytes:
    lines = [line.split(b",") for line in data.split(b"\n")]
    row = lines[rng.randrange(len(lines))]
    place = rng.randrange(len(row))
    action = rng.random()
    if action < 0.7:
        row[place] = rng.choice(TOKENS)
    elif action < 0.8:
        row.insert(place, rng.choice(TOKENS))
    elif action < 0.9:
        row.pop(place)
    else:
        for each in lines:  # a column twice, or gone
            if len(each) > place:
                each[place : place + 1] = [each[place]] * rng.choice((0, 2))
    return b"\n".join(b",".join(row) for row in lines)
