"""What the runs of the engine and their predictions show, wherever it stands.

    python benchmarks/accuracy/engine_table.py

Writes the tables of results/engine_runs.md and the row of results/real_engines.md, from
results/engine_runs.json, which `engine_runs.py` measured.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "engine_runs.json"
TARGETS = {
    "E2E mean": 0.05,
    "TPOT mean": 0.05,
    "TTFT mean": 0.08,
    "TTFT p99": 0.12,
    "TPOT p99": 0.12,
    "E2E p99": 0.12,
}
"""Largest median over the runs of the absolute error."""
HIT_RATE_TARGET, PREEMPTIONS_TARGET = 0.01, 0.02
BIAS_TARGET, MAPE_TARGET = 0.01, 0.06
_HEADS = "| | median over the runs | 90 % interval | wanted |"
_OWN_ENGINE = "| own engine on a CPU"
_REDRAWN = 2000


@dataclass(frozen=True)
class Row:
    """One run beside its prediction. Errors are predicted over measured, minus one."""

    case: str
    model: str
    requests_per_s: float
    errors: dict[str, float]
    hit_rate: tuple[float, float]
    """Measured, predicted."""
    preemptions: tuple[int, int]
    """Measured, predicted."""
    identical_steps: float
    """Share of steps with the same batch when the measured step times are injected."""
    step_mape: float
    step_bias: float
    """Of the profile's prices of the steps as the engine composed them."""
    first_cause: str
    injected: dict[str, float] = field(default_factory=dict)
    """Errors of the means of TTFT and E2E when the measured step times are injected."""
    served: dict[str, str] = field(default_factory=dict)
    """When, and by which commit of the engine on which torch."""

    @property
    def worst(self) -> str:
        return max(self.errors, key=lambda name: abs(self.errors[name]) / TARGETS[name])


def read_rows(path: Path = RESULTS) -> list[Row]:
    """The committed runs."""
    known = {each.name for each in fields(Row)}
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return [Row(**{name: value for name, value in run.items() if name in known}) for run in runs]


# --- every run ---------------------------------------------------------------------------------------


def table(rows: Sequence[Row]) -> str:
    """Every run with its errors, and what is wanted of their medians; in markdown."""
    names = list(TARGETS)
    lines = [
        f"| run | {' | '.join(names)} | hits, points | preemptions | worst | first cause |",
        "| --- |" + " ---: |" * (len(names) + 2) + " --- | --- |",
    ]
    for row in rows:
        errors = " | ".join(f"{row.errors[name]:+.1%}" for name in names)
        hits = f"{100 * (row.hit_rate[1] - row.hit_rate[0]):+.1f}"
        preempted = f"{row.preemptions[0]} → {row.preemptions[1]}"
        lines.append(
            f"| {row.model}: {row.case} | {errors} | {hits} | {preempted} | {row.worst} | {row.first_cause} |"
        )
    return "\n".join([*lines, "", *medians(rows)])


# --- over the runs -----------------------------------------------------------------------------------


def medians(rows: Sequence[Row]) -> list[str]:
    """What all runs show together, beside what is wanted; in markdown.

    The interval is that of the median over as many runs drawn anew from these: what other workloads of the
    kind would give. That a run would not be quite the same twice is in it.
    """
    worst = min(row.identical_steps for row in rows)
    same = "100 % of the steps, in every run" if worst == 1 else f"{worst:.3%} of the steps in the worst run"
    many = [row for row in rows if max(row.preemptions)]
    measured, predicted = (sum(row.preemptions[i] for row in many) for i in (0, 1))
    hits = [100 * abs(row.hit_rate[1] - row.hit_rate[0]) for row in rows]
    lines = [
        _HEADS,
        "|---|---|---|---|",
        f"| batches equal to the engine's, measured step times injected | {same} | | 100 % |",
        *_injected(rows),
        _line("step time: bias", rows, lambda row: row.step_bias, BIAS_TARGET, "+.1f"),
        _line("step time: mean absolute error", rows, lambda row: row.step_mape, MAPE_TARGET),
    ]
    for name, most in TARGETS.items():
        lines.append(_line(name, rows, _error_of(name), most))
    points = f"{statistics.median(hits):.1f} points; at most {max(hits):.1f}"
    lines.append(f"| prefix hit rate | {points} | | {100 * HIT_RATE_TARGET:.0f} point |")
    what = f"preemptions, in the {len(many)} runs with any ({measured:,}; predicted {predicted:,})"
    return [*lines, _line(what, many, _preemptions_off, PREEMPTIONS_TARGET)]


def _injected(rows: Sequence[Row]) -> list[str]:
    """What is left of the errors with the measured step times; nothing where no run states it."""
    found = [row.injected for row in rows if row.injected]
    if not found:
        return []
    ttft, e2e = (max(abs(errors[name]) for errors in found) for name in ("TTFT mean", "E2E mean"))
    within = f"within {100 * ttft:.2f} % and {100 * e2e:.2f} % in the worst run"
    return [f"| means of TTFT and E2E, the same injected | {within} | | |"]


def _line(
    what: str, rows: Sequence[Row], value: Callable[[Row], float], most: float, style: str = ".1f"
) -> str:
    values = 100 * np.array([value(row) for row in rows])
    if not len(values):
        return f"| {what} | | | {100 * most:.0f} % |"
    drawn = np.random.default_rng(0).choice(values, (_REDRAWN, len(values)))
    low, high = np.percentile(np.median(drawn, axis=1), [5, 95])
    found = f"{np.median(values):{style}} % | {low:{style}} to {high:{style}} %"
    return f"| {what} | {found} | {100 * most:.0f} % |"


def _error_of(name: str) -> Callable[[Row], float]:
    return lambda row: abs(row.errors[name])


def _preemptions_off(row: Row) -> float:
    measured, predicted = row.preemptions
    return abs(predicted - measured) / max(measured, 1)


def median_error(rows: Iterable[Row], name: str) -> float:
    """Of the absolute errors."""
    return statistics.median(abs(row.errors[name]) for row in rows)


def own_engine(rows: Sequence[Row]) -> str:
    """The row of the table of all truths."""
    found = " / ".join(f"{median_error(rows, f'{name} mean'):.1%}" for name in ("TTFT", "TPOT", "E2E"))
    return f"{_OWN_ENGINE}, {len(rows)} runs, median | TTFT / TPOT / E2E | 5.4 / 1.8 / 2.6 % | {found} |"


# --- where it stands ---------------------------------------------------------------------------------


def with_row(text: str, begins: str, row: str) -> str:
    """A text in which the one line that begins so is this."""
    return "\n".join(row if line.startswith(begins) else line for line in text.splitlines()) + "\n"


def places(rows: Sequence[Row]) -> dict[Path, str]:
    """The files in which the results stand, as they have to be."""
    truths = RESULTS.with_name("real_engines.md")
    return {
        RESULTS.with_suffix(".md"): table(rows) + "\n",
        truths: with_row(truths.read_text(encoding="utf-8"), _OWN_ENGINE, own_engine(rows)),
    }


def main() -> None:
    for path, text in places(read_rows()).items():
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
