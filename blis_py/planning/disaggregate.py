"""Disaggregate or not: all layouts of the same instances, and why the best one is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from blis_py.config.disaggregation import split_xpyd
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.metrics.registry import shown_in
from blis_py.metrics.slo import limit_and_measured
from blis_py.planning.axes import Axis, axis
from blis_py.planning.fleets import gpus_of, price_of
from blis_py.planning.goal import requirement_of
from blis_py.planning.prices import Prices
from blis_py.planning.runner import Runner
from blis_py.planning.study import Study
from blis_py.planning.sweep import OK, Row
from blis_py.planning.sweep import sweep as run_sweep

_NOTABLE = 0.05
"""Relative difference below which a figure is left out of the reasons."""
_CENT = 0.005
_CAUSE = {
    True: "separated, no prefill delays the tokens of others",
    False: "separated, KV crosses a link and fewer instances prefill",
}
"""Advantage of the kind that wins, by whether prefill and decode are apart."""


@dataclass(frozen=True)
class Layouts:
    """The layouts of a number of instances under one load."""

    rows: tuple[Row, ...]
    best_together: Row
    """Instances that do both."""
    best_apart: Row
    """The best of the layouts with prefill and decode apart."""
    dollars: tuple[float, float] | None = None
    """Per hour, of the winner and of the best of the other kind; None without prices."""

    @property
    def apart(self) -> bool:
        """Whether prefill and decode apart are better."""
        return _key(self.best_apart) < _key(self.best_together)

    @property
    def winner(self) -> Row:
        return self.best_apart if self.apart else self.best_together

    @property
    def loser(self) -> Row:
        """The best of the other kind."""
        return self.best_together if self.apart else self.best_apart

    @property
    def gains(self) -> list[str]:
        """Figures in which the winner is better than the other kind, largest difference first."""
        return [text for ratio, text in self._changes() if ratio < 1]

    @property
    def costs(self) -> list[str]:
        """Figures in which it is worse, largest difference first."""
        return [text for ratio, text in reversed(self._changes()) if ratio > 1]

    def _changes(self) -> list[tuple[float, str]]:
        changes = []
        for metric, statistic in shown_in("layouts"):
            path = f"{metric.key}.{statistic}"
            won, lost = (row.outcome.figures.get(path) for row in (self.winner, self.loser))
            if won and lost and abs(won / lost - 1) >= _NOTABLE:
                values = f"{won:,.1f} instead of {lost:,.1f} {metric.unit.name}".rstrip()
                changes.append((won / lost, f"{statistic} {metric.label} {values}"))
        return sorted(changes)

    @property
    def why(self) -> str:
        """The decisive reason, in one sentence."""
        won, lost = self.winner, self.loser
        if _met(won) > _met(lost):
            missed = next(each for each in lost.outcome.slo if not each["met"])
            return f"{_kind(lost)} miss {requirement_of(missed)}; {_CAUSE[self.apart]}"
        tightest = requirement_of(max(lost.outcome.slo, key=_share))
        room = f"{_kind(won)} leave more room: at most {_tightest(won):.0%} of a limit"
        return f"{room} instead of {_tightest(lost):.0%} ({tightest}); {_CAUSE[self.apart]}"

    def lines(self) -> list[str]:
        """The answer in text."""
        won, lost, targets = self.winner, self.loser, len(self.winner.outcome.slo)
        first = f"Disaggregate: {'yes' if self.apart else 'no'}. {_kind(won)} meet {_met(won)} of {targets} "
        lines = [f"{first}target{'s' if targets > 1 else ''}, {_kind(lost)} {_met(lost)}."]
        lines.append(f"  why: {self.why}")
        lines += [f"  gains: {', '.join(self.gains)}"] if self.gains else []
        lines += [f"  costs: {', '.join(self.costs)}"] if self.costs else []
        if self.dollars is not None and abs(self.dollars[0] - self.dollars[1]) > _CENT:
            lines.append(f"  price: ${self.dollars[0]:,.2f} an hour instead of ${self.dollars[1]:,.2f}")
        ordered = sorted((row for row in self.rows if row.status == OK), key=_key)
        layouts = ", ".join(f"{_name(row)} {_met(row)} ({_tightest(row):.0%})" for row in ordered)
        lines.append(f"  targets met, and the largest share of a limit: {layouts}")
        refused = [_name(row) for row in self.rows if row.status != OK]
        return lines + ([f"  cannot be run: {', '.join(refused)}"] if refused else [])

    def summary(self) -> dict[str, Any]:
        """The same as data."""
        return {
            "disaggregate": self.apart,
            "best": {"together": _name(self.best_together), "apart": _name(self.best_apart)},
            "why": self.why,
            "gains": self.gains,
            "costs": self.costs,
            **({} if self.dollars is None else {"dollars_per_hour": list(self.dollars)}),
            "layouts": [row.as_dict() for row in self.rows],
        }


def layouts_of(config: RunConfig, instances: int, runner: Runner, prices: Prices | None = None) -> Layouts:
    """Run all layouts of `instances` instances, under the load and the targets of a configuration.

    Raises:
        InputError: fewer than two instances, no targets, or no layout of one kind can be run.
    """
    if instances < 2:
        fix = "compare at least 2: one for prefill and one for decode"
        raise InputError("needs more instances", key="--disaggregate", value=instances, fix=fix)
    if not config.slo:
        raise InputError(
            "needs a target to compare by", key="--disaggregate", fix="give --slo ttft.p99=500ms"
        )
    varied: Axis = axis("xpyd", f"auto:{instances}")
    study = Study(overrides=(("num_instances", "num_instances", 1),), start=config)
    rows = run_sweep(study, [varied], runner).rows
    kinds: dict[bool, list[Row]] = {True: [], False: []}
    for row in rows:
        if row.status == OK:
            kinds["p" in _name(row)].append(row)
    for kind, layouts in kinds.items():
        if not layouts:
            reason = next((r.outcome.refused or r.outcome.failed for r in rows if r.status != OK), "")
            what = "prefill and decode apart" if kind else "instances that do both"
            raise InputError(f"no layout with {what} can be run: {reason}", key="--disaggregate")
    answer = Layouts(rows, best_of(kinds[False]), best_of(kinds[True]))
    hourly = [_hourly(study.config(row.point, [varied]), prices) for row in (answer.winner, answer.loser)]
    known = [dollars for dollars in hourly if dollars is not None]
    return replace(answer, dollars=(known[0], known[1]) if len(known) > 1 else None)


def _hourly(config: RunConfig, prices: Prices | None) -> float | None:
    price = None if prices is None else price_of(config, prices)
    return None if price is None else price.per_hour * gpus_of(config)


def best_of(rows: Sequence[Row]) -> Row:
    """The row that meets most targets; among those, the one with most room to the tightest."""
    return min(rows, key=_key)


def _key(row: Row) -> tuple[int, float]:
    """Targets missed, and the largest measured value in shares of its limit."""
    return len(row.outcome.slo) - _met(row), _tightest(row)


def _tightest(row: Row) -> float:
    return max(map(_share, row.outcome.slo), default=0.0)


def _share(target: Any) -> float:
    """The measured value in shares of the limit."""
    limit, measured, _ = limit_and_measured(target)
    return float("inf") if measured is None else measured / limit


def _met(row: Row) -> int:
    return sum(bool(each["met"]) for each in row.outcome.slo)


def _name(row: Row) -> str:
    return str(row.point["xpyd"])


def _kind(row: Row) -> str:
    """The layout in words."""
    prefill, decode, both = split_xpyd(_name(row))
    return f"{prefill} prefill and {decode} decode instances" if prefill else f"{both} instances that do both"
