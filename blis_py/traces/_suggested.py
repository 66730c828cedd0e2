"""Roles of columns guessed from their names: a `--columns` flag for the error about an unknown file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from shlex import quote

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_LENGTHS = {"token", "tokens", "tok", "toks", "length", "len", "lens"}
_SIDES = {
    "input": ({"input", "prompt", "context", "prefill", "isl", "in"}, {"request"}),
    "output": (
        {"output", "completion", "generated", "generation", "gen", "decode", "osl", "out"},
        {"response"},
    ),
}
"""Words of either side, and one that counts where no column has those."""
_OTHERS = {
    "total",
    "cached",
    "cache",
    "mean",
    "avg",
    "average",
    "per",
    "max",
    "throughput",
    "cost",
    "price",
    "bytes",
    "chars",
    "characters",
    "text",
    "flight",
}
"""Words of columns that are no lengths of single requests in tokens."""
_ARRIVALS = (
    {"arrival", "arrived", "arrives"},
    {"start", "started", "sent", "created", "launch"},
    {"timestamp"},
)
_TIMES = {"time", "at", "ts", "timestamp", "date", "datetime", "s", "ms", "us", "ns"}
_TIMES_ALONE = {("ts",), ("time",), ("date",), ("datetime",)}
_NO_ARRIVALS = {"end", "ended", "finish", "finished", "first", "last", "completed", "response", "latency"}
_CONVERSATIONS = (
    *("session_id", "conversation_id", "chat_id", "thread_id"),
    *("session", "conversation", "session_uuid", "conversation_uuid", "conversation_hash"),
)
_UNITS = ("ms", "us", "ns")


def suggested(names: Iterable[str]) -> tuple[str, bool]:
    """The flag for these columns, with `NAME` for unknown ones; and whether both lengths are known."""
    words = {name: _words(name) for name in names}
    roles = {"arrival": _arrival(words), **{side: _length(words, side) for side in _SIDES}}
    known = roles["input"] != "" and roles["output"] != ""
    if known:
        roles["session_id"] = conversation_in(words)
    given = [f"{role}={name or 'NAME'}" for role, name in roles.items() if name or not known]
    last = words.get(roles["arrival"], ())[-1:]
    unit = "".join(f" --time-unit {unit}" for unit in last if unit in _UNITS)
    return f"--columns {quote(','.join(given))}{unit}", known


def conversation_in(names: Iterable[str]) -> str:
    """The column that names the conversation of each request, such as `chat.id`; empty without one."""
    paths = {name: "_".join(word for part in name.split(".")[-2:] for word in _words(part)) for name in names}
    lasts = {name: "_".join(_words(name)) for name in paths}
    return next((name for name in paths if {paths[name], lasts[name]} & {*_CONVERSATIONS}), "")


def _words(name: str) -> tuple[str, ...]:
    return tuple(word.lower() for word in _WORD.findall(name.split(".")[-1]))


def _length(words: dict[str, tuple[str, ...]], side: str) -> str:
    other = _SIDES["output" if side == "input" else "input"]
    for own, others in zip(_SIDES[side], (other[0], other[0] | other[1]), strict=True):
        for name, of_name in words.items():
            counted = _LENGTHS & set(of_name) or _counts(name)
            if own & set(of_name) and counted and not (others | _OTHERS) & set(of_name):
                return name
    return ""


def _counts(name: str) -> bool:
    """Whether a value is below one of counts, as `usageDetails.input`."""
    return bool({"usage", "tokens"} & set(_words(name.rpartition(".")[0])))


def _arrival(words: dict[str, tuple[str, ...]]) -> str:
    for arrivals in _ARRIVALS:
        for name, of_name in words.items():
            timed = len(of_name) == 1 or _TIMES & set(of_name)
            if timed and arrivals & set(of_name) and not _NO_ARRIVALS & set(of_name):
                return name
    return next((name for name, of_name in words.items() if of_name in _TIMES_ALONE), "")
