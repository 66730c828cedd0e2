"""Requests collected one by one from a recording, each checked at its location."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.bounds import LAST_NS, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces._conversations import in_conversations
from blis_py.traces.reading import Reading

_LARGEST = 10**30
_LONGEST_CONVERSATION = 2**31
FAILED = "no output tokens (failed when recorded)"


class Gathered:
    """Requests collected so far.

    A request with missing or invalid times or lengths is a bad row; one without output tokens failed when
    recorded, and is left out and counted.
    """

    def __init__(self, path: Path, reading: Reading) -> None:
        self._path, self._reading = path, reading
        self._failed = 0
        self._arrivals: list[int] = []
        self._prompts: list[int] = []
        self._outputs: list[int] = []
        self._models: list[str] = []
        self._conversations: list[Any] = []
        self._turns: list[int] = []
        self._answered_ns: list[int] = []

    def __len__(self) -> int:
        return len(self._arrivals)

    def add(
        self,
        where: str,
        number: int,
        arrival_ns: Any,
        prompt: Any,
        output: Any,
        *,
        model: Any = "",
        conversation: Any = None,
        turn: Any = None,
        answered_ns: Any = None,
    ) -> bool:
        """Add a request; return whether it was accepted.

        Args:
            where: description of its location in the file.
            number: an increasing number of that location.
            arrival_ns: None if unknown.
            conversation: its name; None or empty = none.
            turn: place in the conversation; None = by arrival.
            answered_ns: end of the answer, on the clock of arrivals; None = unknown.
        """
        try:
            self._check(where, arrival_ns, prompt, output)
        except InputError as error:
            self._reading.bad.refuse(error, number)
            return False
        if output == 0:
            self._failed += 1
            return False
        self._arrivals.append(round(arrival_ns or 0))
        self._prompts.append(int(prompt))
        self._outputs.append(int(output))
        self._models.append(model if isinstance(model, str) else "")
        self._conversations.append(conversation)
        self._turns.append(turn if type(turn) is int and abs(turn) < _LONGEST_CONVERSATION else -1)
        self._answered_ns.append(round(answered_ns) if _is_number(answered_ns) else 0)
        return True

    def _check(self, where: str, arrival_ns: Any, prompt: Any, output: Any) -> None:
        if arrival_ns is not None and not (_is_number(arrival_ns) and arrival_ns >= 0):
            raise InputError("not a time", file=where, key="arrival", value=arrival_ns)
        for key, value, least in (("input tokens", prompt, 1), ("output tokens", output, 0)):
            if not (_is_number(value) and value == int(value)):
                raise InputError("not a whole number", file=where, key=key, value=value)
            if not least <= value <= MAX_TOKENS:
                problem = f"must be at least {least}" if value < least else "is too large"
                raise InputError(problem, file=where, key=key, value=value)

    def table(self) -> RequestTable:
        """The table of all requests, with times from the earliest, and their conversations.

        Raises:
            InputError: no requests, or arrivals spread over more than a century.
        """
        self._reading.left_out(self._failed, FAILED)
        if not self._arrivals:
            first = self._reading.bad.first
            failed = f": all {self._failed:,} failed when recorded" if self._failed else ""
            why = failed if first is None else f": all are bad, the first: {first.problem}"
            raise InputError(
                f"no requests in it{why}", file=self._path, fix="give one with answered requests"
            )
        earliest = min(self._arrivals)
        if max(self._arrivals) - earliest > LAST_NS:
            raise InputError("its requests are more than a century apart", file=self._path)
        table = RequestTable.build(
            np.array([arrival - earliest for arrival in self._arrivals], dtype=np.int64),
            np.array(self._prompts, dtype=np.int64),
            np.array(self._outputs, dtype=np.int64),
            model=Labels.of(self._models),
        )
        if not any(name not in (None, "") for name in self._conversations):
            return table
        answered_ns = [
            ended - earliest if 0 < ended - earliest <= LAST_NS else 0 for ended in self._answered_ns
        ]
        return in_conversations(
            table,
            self._conversations,
            self._reading,
            turn=np.array(self._turns, dtype=np.int64) if min(self._turns) >= 0 else None,
            answered_ns=np.array(answered_ns, dtype=np.int64),
        )


def _is_number(value: Any) -> bool:
    """Whether a value is a number of a usable size."""
    return type(value) in (int, float) and -_LARGEST < value < _LARGEST


def seconds(value: Any) -> Any:
    """Seconds to ns; other values are returned unchanged, to be refused by the caller's check."""
    return value * 1e9 if _is_number(value) else value


def milliseconds(value: Any) -> Any:
    """Milliseconds to ns; other values are returned unchanged, to be refused by the caller's check."""
    return value * 1e6 if _is_number(value) else value
