"""How many instances the measured points of a server imply, and how many the predictions of the same points.

    python benchmarks/accuracy/instances.py

Reads `results/real_engines.json` (closed loops of vLLM with several concurrencies) and simulates nothing. In
each group of one engine, model, GPU, TP and lengths, TTFT and TPOT of the middle concurrency are the targets.
The highest requests/s within both follows from the points, with straight lines between concurrencies: once
as measured, once as predicted by coefficients that had not seen the model. For eight times the measured rate,
the instances that either needs are compared. Writes `results/instances.json` and `results/instances.md`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"
PRICES = "trained, new model"
MULTIPLE = 8
_CASE = re.compile(r"_(\d+)x(\d+)_c(\d+)")
_DRAWN = 0.9
"""Mean of lengths drawn from [0.8 L, L]."""


@dataclass(frozen=True)
class Point:
    """A closed loop, measured or predicted."""

    concurrency: int
    ttft_ms: float
    tpot_ms: float
    output_tokens: int

    @property
    def per_s(self) -> float:
        """Requests per second: the loop is always full."""
        e2e_ms = self.ttft_ms + self.tpot_ms * (_DRAWN * self.output_tokens - 1)
        return 1000 * self.concurrency / e2e_ms


@dataclass(frozen=True)
class Group:
    """Points of one server."""

    name: str
    measured: tuple[Point, ...]
    predicted: tuple[Point, ...]
    consistent: bool


@dataclass(frozen=True)
class Answer:
    """What a group implies."""

    group: str
    targets_ms: tuple[float, float]
    measured_per_s: float
    predicted_per_s: float
    implied: int
    predicted: int | None
    """Instances for eight times the measured rate; None = no tried concurrency meets the targets."""
    consistent: bool


def groups(rows: Sequence[Mapping[str, Any]], prices: str = PRICES) -> list[Group]:
    """Groups with at least three concurrencies."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        case = _CASE.search(row["case"])
        if row["truth"] != "closed loops" or row["prices"] != prices or case is None:
            continue
        isl, osl, count = map(int, case.groups())
        name = f"{row['model']} on {row['gpu']} TP{row['tp']}, {row['engine']}, {isl}/{osl}"
        point = found.setdefault(name, {}).setdefault(count, {"osl": osl, "consistent": row["consistent"]})
        point[row["metric"]] = row["measured"], row["predicted"]
    made = []
    for name, points in found.items():
        sides = [
            tuple(Point(c, p["TTFT"][i], p["TPOT"][i], p["osl"]) for c, p in sorted(points.items()))
            for i in (0, 1)
        ]
        if len(points) >= 3:
            made.append(Group(name, *sides, all(each["consistent"] for each in points.values())))
    return made


def highest(points: Sequence[Point], ttft_ms: float, tpot_ms: float) -> float | None:
    """The highest requests/s within both targets, on straight lines between the points."""
    best = None
    for index, point in enumerate(points):
        if point.ttft_ms <= ttft_ms and point.tpot_ms <= tpot_ms:
            best = max(best or 0.0, point.per_s)
            if index + 1 < len(points):
                best = max(best, _between(point, points[index + 1], ttft_ms, tpot_ms))
    return best


def _between(low: Point, high: Point, ttft_ms: float, tpot_ms: float) -> float:
    shares = [1.0]
    for limit, name in ((ttft_ms, "ttft_ms"), (tpot_ms, "tpot_ms")):
        first, last = getattr(low, name), getattr(high, name)
        if last > limit:
            shares.append((limit - first) / (last - first))
    return low.per_s + min(shares) * (high.per_s - low.per_s)


def answer(group: Group) -> Answer:
    """Instances that the measured and the predicted points imply."""
    middle = group.measured[len(group.measured) // 2]
    targets = middle.ttft_ms, middle.tpot_ms
    measured, predicted = highest(group.measured, *targets), highest(group.predicted, *targets)
    assert measured is not None
    load = MULTIPLE * measured
    needed = None if predicted is None else math.ceil(load / predicted - 1e-9)
    return Answer(group.name, targets, measured, predicted or 0.0, MULTIPLE, needed, group.consistent)


def summary(answers: Sequence[Answer]) -> dict[str, float]:
    """Bias and shares, of the groups that do not contradict themselves."""
    consistent = [each for each in answers if each.consistent]
    known = [each for each in consistent if each.predicted is not None]
    off = [(each.predicted or 0) - each.implied for each in known]
    return {
        "groups": len(consistent),
        "without_answer": len(consistent) - len(known),
        "bias_instances": sum(off) / max(len(off), 1),
        "within_one": sum(abs(each) <= 1 for each in off) / max(len(consistent), 1),
        "fewer_by_more_than_one": sum(each < -1 for each in off),
    }


def table(answers: Sequence[Answer]) -> str:
    """Markdown."""
    head = "# Instances: predicted against what the measured points imply\n\n"
    head += f"For {MULTIPLE} times the measured rate; by `python benchmarks/accuracy/instances.py`. "
    head += "* The points contradict each other.\n\n"
    lines = [
        "| server, input/output tokens | targets TTFT / TPOT, ms | requests/s measured | predicted "
        "| instances |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for each in answers:
        needed = "none meets them" if each.predicted is None else str(each.predicted)
        star = "" if each.consistent else " *"
        lines.append(
            f"| {each.group}{star} | {each.targets_ms[0]:.0f} / {each.targets_ms[1]:.1f} "
            f"| {each.measured_per_s:.3g} | {each.predicted_per_s:.3g} | {needed} for {each.implied} |"
        )
    figures = summary(answers)
    others = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in figures.items())
    return f"{head}{chr(10).join(lines)}\n\nOf the groups that do not: {others}.\n"


def main() -> None:
    rows = json.loads((RESULTS / "real_engines.json").read_text(encoding="utf-8"))
    answers = [answer(group) for group in groups(rows)]
    text = table(answers)
    print(text)
    content = {"summary": summary(answers), "groups": [asdict(each) for each in answers]}
    (RESULTS / "instances.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "instances.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
