"""Autopsy from a client's times alone, without a step log of the server.

The mean error of a latency is split over what can be distinguished from outside: requests of the warm-up,
requests that queued in only one run, and for all others a line

    error = constant + a*step time + b*requests in flight

by least squares, with as few terms as explain it: only those whose 90 % interval excludes 0 (bootstrap over
slices of time), and that do not merely cancel each other. Shares sum to the error; the unexplained remainder
is a separate share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.calibrate.change import AdvisedChange
from blis_py.calibrate.token_times import Seconds, TokenTimes

WARM_UP_S = 20.0
"""Kernels are compiled on first use: in recorded runs of vLLM this ends after 10 to 20 s."""
TITLES = {
    "warm_up": "warm-up",
    "queueing": "queueing",
    "constant": "constant",
    "steps": "multiple of the step time",
    "load": "growth with load",
    "rest": "unexplained",
}
_LINE = ("constant", "steps", "load")
_SLICES, _DRAWS = 20, 200
_CANCEL = 1.5
"""Terms cancel each other if their shares sum to this multiple of the error."""
_WAITED_STEPS = 10.0
"""Extra waiting time, in steps, from which a request counts as queued."""
NEGLIGIBLE = 0.001
"""Share of the measured mean below which a part is not shown."""
_A_STEP = 0.8
"""A constant of this many step times may be the step by which an asynchronous engine is ahead."""
_MIN = 30
"""Minimum number of requests for a line."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class AutopsyPart:
    """A part of the mean error of a latency."""

    name: str
    """A key of `TITLES`."""
    share_s: float
    """Share of the mean error, predicted minus measured."""
    low_s: float
    high_s: float
    """Upper end of the share's 90 % interval."""
    found: str
    fix: str
    """A suggested fix; empty if there is none."""
    change: AdvisedChange | None = None
    """The same as a change of a number, which can be tried; None if it is none."""

    @property
    def title(self) -> str:
        return TITLES[self.name]


@dataclass(frozen=True)
class ClientAutopsy:
    """The mean error of one latency, split into parts."""

    latency: str
    requests: int
    measured_s: float
    predicted_s: float
    parts: tuple[AutopsyPart, ...]
    """Parts in the order of `TITLES`; they sum to the error except for negligible ones."""

    @property
    def error_s(self) -> float:
        return self.predicted_s - self.measured_s


def client_autopsies(measured: TokenTimes, predicted: TokenTimes) -> tuple[ClientAutopsy, ...]:
    """Autopsies of TTFT and TPOT.

    Args:
        measured, predicted: the same requests in the same places.
    """
    in_flight = requests_in_flight(measured)
    steps_s = predicted.tpot_s
    known = ~(np.isnan(measured.tpot_s) | np.isnan(steps_s))
    usual = float(np.median(steps_s[known])) if known.any() else 0.0
    steps_s = np.where(np.isnan(steps_s), usual, steps_s)
    since_s = measured.sent_s - measured.sent_s.min()
    warm = since_s < WARM_UP_S if since_s.max() > 3 * WARM_UP_S else np.zeros(len(since_s), dtype=np.bool_)
    autopsies = []
    for latency, real, sim, rows in (
        ("TTFT", measured.ttft_s, predicted.ttft_s, np.ones(len(since_s), dtype=np.bool_)),
        ("TPOT", measured.tpot_s, predicted.tpot_s, known),
    ):
        if rows.any():
            picked = (real[rows], sim[rows], steps_s[rows], in_flight[rows], warm[rows], since_s[rows])
            autopsies.append(_autopsy(latency, *picked))
    return tuple(autopsies)


def requests_in_flight(times: TokenTimes) -> Seconds:
    """Number of requests in flight when each request was sent, itself included."""
    ends_s = np.sort(times.sent_s + times.e2e_s)
    begun = np.sort(times.sent_s).searchsorted(times.sent_s, side="right")
    counts: Seconds = (begun - ends_s.searchsorted(times.sent_s, side="right")).astype(np.float64)
    return counts


def _autopsy(
    latency: str, real: Seconds, sim: Seconds, steps: Seconds, in_flight: Seconds, warm: Mask, since: Seconds
) -> ClientAutopsy:
    error = sim - real
    queued = ~warm & _waited_in_one(error, steps, warm) if latency == "TTFT" else np.zeros_like(warm)
    rest = ~warm & ~queued
    columns = np.stack([np.ones(len(error)), steps, in_flight], axis=1)
    kept = _kept(error[rest], columns[rest], since[rest])
    slices = _slice_of(since)

    def shares(rows: NDArray[np.intp]) -> Seconds:
        return _shares(error[rows], columns[rows], warm[rows], queued[rows], kept)

    whole = shares(np.arange(len(error)))
    random = np.random.default_rng(0)
    by_slice = [np.flatnonzero(slices == number) for number in range(_SLICES)]
    by_slice = [rows for rows in by_slice if len(rows)]
    drawn = [
        shares(np.concatenate([by_slice[i] for i in random.integers(0, len(by_slice), len(by_slice))]))
        for _ in range(_DRAWS)
    ]
    low, high = np.percentile(drawn, (5, 95), axis=0)
    words = _Words(latency, error, columns, warm, queued, _line(error[rest], columns[rest], kept))
    parts = [
        AutopsyPart(name, float(whole[i]), float(low[i]), float(high[i]), *words.of(name), words.change(name))
        for i, name in enumerate(TITLES)
        if abs(whole[i]) > NEGLIGIBLE * real.mean()
    ]
    return ClientAutopsy(latency, len(error), float(real.mean()), float(sim.mean()), tuple(parts))


def _waited_in_one(error: Seconds, steps: Seconds, warm: Mask) -> Mask:
    """Requests whose error is many steps off the usual one: one run queued and the other did not."""
    usual = np.median(error[~warm]) if (~warm).any() else 0.0
    waited: Mask = np.abs(error - usual) > _WAITED_STEPS * steps
    return waited


def _shares(error: Seconds, columns: Seconds, warm: Mask, queued: Mask, kept: Mask) -> Seconds:
    """Parts of the mean error, in the order of `TITLES`."""
    count, rest = len(error), ~warm & ~queued
    usual = float(error[rest].mean()) if rest.any() else 0.0
    line = _line(error[rest], columns[rest], kept) if rest.any() else np.zeros(len(_LINE))
    # requests of the first two kinds count with their difference from the others
    terms = line * columns[rest].mean(axis=0) if rest.any() else line
    early = float((error[warm] - usual).sum()) / count
    waited = float((error[queued] - usual).sum()) / count
    shares = np.array([early, waited, *terms, 0.0])
    shares[-1] = error.mean() - shares.sum()
    return np.where(np.abs(shares) < 1e-12, 0.0, shares)


def _line(error: Seconds, columns: Seconds, kept: Mask) -> Seconds:
    """Coefficients of the line, 0 for terms that are not kept."""
    line = np.zeros(columns.shape[1])
    if kept.any() and len(error):
        line[kept] = np.linalg.lstsq(columns[:, kept], error, rcond=None)[0]
    return line


def _kept(error: Seconds, columns: Seconds, since: Seconds) -> Mask:
    """Terms added one by one, the most explanatory first, as long as the slices of time agree on all of them
    and they do not merely cancel each other."""
    kept = np.zeros(columns.shape[1], dtype=np.bool_)
    if len(error) < _MIN:
        return np.array([True, False, False])
    slices = _slice_of(since)
    by_slice = [rows for rows in (np.flatnonzero(slices == i) for i in range(_SLICES)) if len(rows)]
    products = [(columns[rows].T @ columns[rows], columns[rows].T @ error[rows]) for rows in by_slice]
    random = np.random.default_rng(1)
    draws = random.integers(0, len(products), (_DRAWS, len(products)))
    while not kept.all():
        wider = [np.flatnonzero(kept | (np.arange(len(kept)) == i)) for i in np.flatnonzero(~kept)]
        wider = [at for at in wider if _agreed(products, draws, at) and not _cancel(error, columns, at)]
        if not wider:
            break
        best = min(wider, key=lambda at: float(((error - _fitted(error, columns, at)) ** 2).sum()))
        kept[best] = True
    return kept


def _agreed(products: list[tuple[Seconds, Seconds]], draws: NDArray[Any], at: NDArray[np.intp]) -> bool:
    """Whether no coefficient's interval contains 0."""
    lines = np.array([_solved([products[i] for i in draw], at) for draw in draws])
    low, high = np.percentile(lines, (5, 95), axis=0)
    return bool(((low > 0) | (high < 0)).all())


def _cancel(error: Seconds, columns: Seconds, at: NDArray[np.intp]) -> bool:
    line = _solved([(columns.T @ columns, columns.T @ error)], at)
    shares = np.abs(line * columns[:, at].mean(axis=0)).sum()
    return len(at) > 1 and bool(shares > _CANCEL * abs(error.mean()))


def _fitted(error: Seconds, columns: Seconds, at: NDArray[np.intp]) -> Seconds:
    fitted: Seconds = columns[:, at] @ _solved([(columns.T @ columns, columns.T @ error)], at)
    return fitted


def _solved(products: list[tuple[Seconds, Seconds]], at: NDArray[np.intp]) -> Seconds:
    square = np.sum([product[0] for product in products], axis=0)[np.ix_(at, at)]
    right = np.sum([product[1] for product in products], axis=0)[at]
    scale = np.sqrt(np.diag(square)) + 1e-30
    solved: Seconds = np.linalg.lstsq(square / np.outer(scale, scale), right / scale, rcond=1e-9)[0] / scale
    return solved


def _slice_of(since: Seconds) -> NDArray[np.intp]:
    span = float(since.max(initial=0.0)) or 1.0
    return np.minimum((since / span * _SLICES).astype(np.intp), _SLICES - 1)


# --- words -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Words:
    latency: str
    error: Seconds
    columns: Seconds
    warm: Mask
    queued: Mask
    line: Seconds

    def of(self, name: str) -> tuple[str, str]:
        """The finding on a part and its fix."""
        say: dict[str, Callable[[], tuple[str, str]]] = {
            "warm_up": self._warm_up,
            "queueing": self._queueing,
            "constant": self._constant,
            "steps": self._steps,
            "load": self._load,
        }
        return say[name]() if name in say else ("single requests, and effects that are not modelled", "")

    def change(self, name: str) -> AdvisedChange | None:
        """The change of a number by which the fix of a part can be tried."""
        if name not in ("constant", "steps", "load"):
            return None
        missing = -float(self.line[("constant", "steps", "load").index(name)])
        if self.latency == "TPOT":
            amounts = {"constant": ("gap_us", 1e6), "steps": ("step_scale", 1.0), "load": ("gap_seq_us", 1e6)}
            if name == "constant" and missing < 0:
                return None
            kind, unit = amounts[name]
            return AdvisedChange(kind, missing * unit)
        if name == "steps":
            return AdvisedChange("async_scheduling", float(missing > 0))
        if name == "load" and missing < 0:
            return None
        return AdvisedChange("frontend_ms" if name == "constant" else "frontend_seq_ms", missing * 1e3)

    def _warm_up(self) -> tuple[str, str]:
        ms = float(np.mean(self.error[self.warm]) - np.mean(self.error[~self.warm])) * 1e3
        return f"{int(self.warm.sum()):,} requests of the first {WARM_UP_S:g} s are {ms:+.1f} ms off", (
            f"--skip-first {WARM_UP_S:g}s"
        )

    def _queueing(self) -> tuple[str, str]:
        late, count = int((self.error[self.queued] < 0).sum()), int(self.queued.sum())
        finding = f"{late:,} requests waited in the measured run alone, {count - late:,} in the simulated one"
        return finding, "--num-kv-blocks, --max-num-seqs and --max-num-batched-tokens as the server has them"

    def _constant(self) -> tuple[str, str]:
        ms = -float(self.line[0]) * 1e3
        if self.latency == "TTFT":
            steps = ms / 1e3 / float(self.columns[:, 1].mean())
            fix = f"add {ms:.1f} ms to --frontend-ms"
            if ms < 0:
                fix = f"lower --frontend-ms by {-ms:.1f} ms, at most to 0; the rest is in the step times"
            if steps > _A_STEP:
                fix = f"--async-scheduling, if the server plans ahead and the simulation does not; or {fix}"
            return f"{_missing(ms, 'ms')} ({abs(steps):.2f} step times) at every load", fix
        fix = f"add {ms * 1e3:.0f} to latency.step_gap_us"
        if ms < 0:
            fix = "a latency.step_scale below 1, by `blis profile fit`: a gap cannot be negative"
        return f"{_missing(ms * 1e3, 'us')} in every step", fix

    def _steps(self) -> tuple[str, str]:
        times = -float(self.line[1])
        if self.latency == "TPOT":
            finding = f"steps are {1 + times:.3f} times as long as predicted"
            return finding, f"multiply latency.step_scale by {1 + times:.3f}, or `blis profile fit`"
        fix = "--async-scheduling" if times > 0 else "--no-async-scheduling"
        fix += ", if the server is of that kind"
        return f"{_missing(times, 'step times')} before the first token", fix

    def _load(self) -> tuple[str, str]:
        us = -float(self.line[2]) * 1e6
        finding = f"{_missing(us, 'us')} for each request in flight"
        if self.latency == "TPOT":
            if us < 0:
                return finding, "lower the second number of latency.step_gap_us, if it is set"
            return finding, f"add {us:.1f} to the second number of latency.step_gap_us"
        if us < 0:
            return finding, "KV blocks, sequences and tokens per step as the server has them"
        fix = f"add {us / 1e3:.3g} to the third number of --frontend-ms"
        return finding, f"{fix}; a server's front end short of CPU needs more cores or API servers"


def _missing(amount: float, unit: str) -> str:
    return f"{abs(amount):.3g} {unit} {'are missing' if amount > 0 else 'too many'}"


def as_dict(autopsies: tuple[ClientAutopsy, ...]) -> list[dict[str, Any]]:
    """Plain data, seconds."""
    return [
        {
            "latency": one.latency.lower(),
            "requests": one.requests,
            "measured_s": one.measured_s,
            "predicted_s": one.predicted_s,
            "parts": [
                {
                    "part": part.name,
                    "share_s": part.share_s,
                    "interval_s": [part.low_s, part.high_s],
                    "found": part.found,
                    "fix": part.fix,
                }
                for part in one.parts
            ],
        }
        for one in autopsies
    ]
