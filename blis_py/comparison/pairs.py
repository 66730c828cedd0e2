"""Matching of the same requests in two runs; rejects runs of different requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from blis_py.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
COMPLETED = ("completed", "length_capped")
_MOSTLY = 0.9
"""Share of the smaller run's requests that the other must contain."""
_MOVES_ARRIVALS = (
    "workload.rate",
    "workload.time_scale",
    "workload.concurrency",
    "workload.think_time_ms",
    "workload.think_time_dist",
    "workload.session_mode",
    "workload.closed_loops",
    "workload.arrival",
    "workload.cv",
)
"""Settings that change the arrival times of the same requests."""


class ShownPair(Protocol):
    """The required part of a result, saved or not."""

    @property
    def summary(self) -> dict[str, Any]: ...

    @property
    def settings(self) -> dict[str, Any]: ...

    @property
    def requests(self) -> pd.DataFrame: ...


@dataclass(frozen=True)
class Pairs:
    """Requests in both runs, in order of arrival in the first; row i of both is the same request."""

    first: pd.DataFrame
    second: pd.DataFrame
    only: tuple[int, int]
    """Number of requests only in the first run, and only in the second."""
    note: str | None = None
    """A note for the reader."""

    def __len__(self) -> int:
        return len(self.first)

    def values(self, column: str) -> tuple[Floats, Floats]:
        """A column of both; NaN where undefined."""
        return _numbers(self.first, column), _numbers(self.second, column)

    def completed(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        return (
            self.first["outcome"].isin(COMPLETED).to_numpy(),
            self.second["outcome"].isin(COMPLETED).to_numpy(),
        )


def pairs(first: ShownPair, second: ShownPair, names: tuple[str, str]) -> Pairs:
    """Match requests by name.

    Raises:
        InputError: the runs are of different requests; the message says why.
    """
    one, other = _by_name(first, names[0]), _by_name(second, names[1])
    if not (len(one) or len(other)):
        return Pairs(one, other, (0, 0), "neither run has any request")
    common = one.index[one.index.isin(other.index)]
    fewer = min(len(one), len(other))
    if len(common) < max(_MOSTLY * fewer, 1):
        matched = f"{len(common):,} of {fewer:,} requests" if len(common) else "no request"
        raise _unrelated(names, f"{matched} of one {'are' if len(common) > 1 else 'is'} in the other")
    left = (len(one) - len(common), len(other) - len(common))
    one, other = one.loc[common], other.loc[common]
    _check_same(one, other, names)
    return Pairs(one, other, left, _note(one, other, first, second, names))


def _waits(run: ShownPair) -> bool:
    """Whether sending depends on answers: permits, or sessions whose turns wait."""
    return "client_wait_ms" in run.requests or "cancelled_turns" in run.summary.get("sessions", {})


def _by_name(run: ShownPair, name: str) -> pd.DataFrame:
    frame = run.requests.set_index("request_id")
    if not frame.index.is_unique:
        twice = frame.index[frame.index.duplicated()][0]
        raise InputError("two requests have this name, so none can be matched", file=name, value=twice)
    return frame


def _check_same(one: pd.DataFrame, other: pd.DataFrame, names: tuple[str, str]) -> None:
    """Check for equal prompts and, for requests completed by themselves in both, equal answers.

    Raises:
        InputError: they differ.
    """
    all_rows = np.ones(len(one), dtype=np.bool_)
    done = ((one["outcome"] == "completed") & (other["outcome"] == "completed")).to_numpy()
    for column, where in (("prompt_tokens", all_rows), ("output_tokens", done)):
        mine, theirs = one[column].to_numpy(), other[column].to_numpy()
        apart = np.flatnonzero((mine != theirs) & where)
        if len(apart):
            at = int(apart[0])
            what = column.replace("_", " ")
            stated = f"{one.index[at]} has {mine[at]:,} {what} in one and {theirs[at]:,} in the other"
            raise _unrelated(names, stated)


def _note(
    one: pd.DataFrame,
    other: pd.DataFrame,
    first: ShownPair,
    second: ShownPair,
    names: tuple[str, str],
) -> str | None:
    """The reason for different arrival times of the same requests, if there is one."""
    mine, theirs = one["arrival_s"].to_numpy(), other["arrival_s"].to_numpy()
    if np.array_equal(mine, theirs):
        return None
    settings = changed(first.settings, second.settings)
    moved = [(key, *values) for key, *values in settings if key in _MOVES_ARRIVALS]
    if moved:
        stated = ", ".join(f"{key} {_number(was)} and {_number(now)}" for key, was, now in moved)
        return f"the same requests come at other times: {stated}"
    if _waits(first):
        return "in a closed loop the same requests are sent at other times, when others have ended"
    at = int(np.flatnonzero(mine != theirs)[0])
    stated = f"{one.index[at]} arrives at {mine[at]:g} s in one and at {theirs[at]:g} s in the other"
    raise _unrelated(names, f"{stated}, which no setting explains")


def _unrelated(names: tuple[str, str], why: str) -> InputError:
    fix = "compare runs of one workload with one seed, or of one trace"
    return InputError(f"not runs of the same requests: {why}", key=" and ".join(names), fix=fix)


def _number(value: Any) -> str:
    return f"{value:,g}" if isinstance(value, int | float) else str(value)


def flat(settings: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted key."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}", value


def changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ: key, and both values; None where one has no such setting.

    Which of them were set, and which follow from others, makes no difference.
    """
    one, other = dict(flat(first)), dict(flat(second))
    differ = (key for key in {**one, **other} if key != "given" and one.get(key) != other.get(key))
    return [(key, one.get(key), other.get(key)) for key in differ]


def _numbers(frame: pd.DataFrame, column: str) -> NDArray[np.float64]:
    """A column, NaN if a result was saved before its metric was registered."""
    return frame[column].to_numpy(dtype=float) if column in frame else np.full(len(frame), np.nan)
