"""Matching of the requests of a measured and a simulated run; rejects runs of different requests.

Requests of the same number are compared if most of them were sent at the same time with prompts of similar
length, or have the same lengths; if not, requests of the same lengths in order of sending. If neither holds,
the runs have different workloads, and a comparison is meaningless. If a run lacks sending times, numbers and
lengths have to agree.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.token_times import Seconds, TokenTimes
from blis_py.errors import InputError
from blis_py.requests.table import Ints

Rows = NDArray[np.intp]

MAX = 0.9
"""Share of the requests that must agree."""
_HALF = 0.5
"""Share of the requests sent at the same time that must have similar lengths."""
_APART_S = 0.05
"""Tolerance of sending times, since clients are not exact."""
_PEAK = 0.1
"""Relative tolerance of the requests in flight in two closed loops."""


def matched(measured: TokenTimes, predicted: TokenTimes) -> tuple[Rows, Rows]:
    """Rows of matching requests, in order of the measured run's ids.

    Raises:
        InputError: the runs are of different requests.
    """
    _, ours, theirs = np.intersect1d(measured.request_id, predicted.request_id, return_indices=True)
    if not len(ours):
        fix = "calibrate a trace against the simulation of that same trace"
        raise InputError("no request completed in both runs", file=predicted.source, fix=fix)
    if related(measured.take(ours), predicted.take(theirs)):
        return ours, theirs
    if not (measured.has_send_times and predicted.has_send_times):
        raise _unrelated(measured, predicted, ours, theirs)
    by_length = _by_lengths(measured, predicted)
    fewer = min(len(measured.request_id), len(predicted.request_id))
    if len(by_length[0]) >= MAX * fewer and related(
        measured.take(by_length[0]), predicted.take(by_length[1])
    ):
        return by_length
    raise _unrelated(measured, predicted, ours, theirs)


def related(measured: TokenTimes, predicted: TokenTimes) -> bool:
    """Whether rows of the same index are mostly the same request.

    If one run lacks sending times, by their lengths alone.
    """
    if not (measured.has_send_times and predicted.has_send_times):
        alike = _about_as_long(measured, predicted) & (measured.output_tokens == predicted.output_tokens)
        return bool(alike.mean() >= MAX)
    if _at_the_same_time(measured.sent_s, predicted.sent_s).mean() >= MAX:
        return bool(_about_as_long(measured, predicted).mean() >= _HALF)
    alike = _as_long(measured, predicted)
    if alike.mean() < MAX:
        return False
    if _kinds(measured) * 2 > len(alike):
        return True  # that many different lengths do not agree by chance
    peaks = _most_in_flight(measured), _most_in_flight(predicted)
    return abs(peaks[0] - peaks[1]) <= _PEAK * peaks[0]


def _at_the_same_time(ours: Seconds, theirs: Seconds) -> NDArray[np.bool_]:
    """Requests sent at the same time, relative to an origin that suits most."""
    apart = ours - theirs
    same: NDArray[np.bool_] = np.abs(apart - np.median(apart)) <= _APART_S
    return same


def _about_as_long(measured: TokenTimes, predicted: TokenTimes) -> NDArray[np.bool_]:
    """Requests of similar length by prompts, which tokenisers may count differently; by answers if prompts
    are unknown."""
    ours, theirs = measured.prompt_tokens, predicted.prompt_tokens
    if ours is None or theirs is None:
        ours, theirs = measured.output_tokens, predicted.output_tokens
    close: NDArray[np.bool_] = np.abs(ours - theirs) <= np.maximum(0.1 * ours, 4)
    return close


def _as_long(measured: TokenTimes, predicted: TokenTimes) -> NDArray[np.bool_]:
    alike: NDArray[np.bool_] = measured.output_tokens == predicted.output_tokens
    if measured.prompt_tokens is not None and predicted.prompt_tokens is not None:
        alike = alike & (measured.prompt_tokens == predicted.prompt_tokens)
    return alike


def _lengths(times: TokenTimes, prompts: bool) -> list[tuple[int, int]]:
    prompt_tokens = times.prompt_tokens if prompts else None
    first = np.zeros_like(times.output_tokens) if prompt_tokens is None else prompt_tokens
    return list(zip(first.tolist(), times.output_tokens.tolist(), strict=True))


def _kinds(times: TokenTimes) -> int:
    return len(set(_lengths(times, times.prompt_tokens is not None)))


def _by_lengths(measured: TokenTimes, predicted: TokenTimes) -> tuple[Rows, Rows]:
    """Match requests of equal lengths in order of sending."""
    prompts = measured.prompt_tokens is not None and predicted.prompt_tokens is not None
    places = []
    for times in (measured, predicted):
        count_of: Counter[tuple[int, int]] = Counter()
        lengths, row_of = _lengths(times, prompts), {}
        for row in np.argsort(times.sent_s, kind="stable").tolist():
            row_of[lengths[row], count_of[lengths[row]]] = row
            count_of[lengths[row]] += 1
        places.append(row_of)
    both = sorted((row, places[1][key]) for key, row in places[0].items() if key in places[1])
    ours, theirs = np.array(both, dtype=np.intp).reshape(-1, 2).T
    return ours, theirs


def _most_in_flight(times: TokenTimes) -> int:
    changes = np.concatenate([times.sent_s, times.sent_s + times.e2e_s])
    order = np.argsort(changes, kind="stable")
    signs: Ints = np.repeat(np.array([1, -1]), len(times.sent_s))
    return int(signs[order].cumsum().max())


def _unrelated(measured: TokenTimes, predicted: TokenTimes, ours: Rows, theirs: Rows) -> InputError:
    real, sim = measured.take(ours), predicted.take(theirs)
    alike = f"{_as_long(real, sim).mean():.0%} are as long as in {measured.source}"
    if measured.has_send_times and predicted.has_send_times:
        same = _at_the_same_time(real.sent_s, sim.sent_s).mean()
        alike = f"{same:.0%} were sent at the same time, and {alike}"
    problem = f"the runs are not of the same requests: of {len(ours):,} with the same number {alike}"
    fix = "simulate the measured run itself: its arrivals and lengths, with `blis replay --trace`"
    return InputError(problem, file=predicted.source, fix=fix)
