"""How many instances the measured points of a server imply, and how many the predictions of the same points.

    python benchmarks/accuracy/instances.py [../shared/data]

In each group of one engine, model, GPU, layout and lengths, TTFT and TPOT of the middle concurrency are the
targets. The highest requests/s within both follows from the points and what lies between them: once as
measured, once as predicted. For eight times the measured rate, the instances that
either needs are compared; where they differ, the table says which target is short in the prediction, and by
how much that latency is off at the middle concurrency. The errors of other servers are drawn as by
`blis plan`, and each draw needs its own number of instances: the confidence is the share in which the
predicted number suffices (below 90 % a plan says so), the interval spans 5 to 95 % of them, and the number
at 90 % is what `--confidence 90%` asks for. Three sets:

- held out: closed loops of `results/real_engines.json`, by coefficients that had not seen the model;
- silicon and inferencemax: the points of `points.py`, as the accuracy page prices them
  (`results/accuracy.json`, by `page.py`).

Writes `results/instances.json` and `results/instances.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import point_sets as published
from points import Point as Published

from blis_py.planning.uncertainty import Regime, errors_in
from blis_py.planning.validated import CLOSED, DENSE, EXPERTS, validated

RESULTS = Path(__file__).resolve().parents[1] / "results"
PRICES = "trained, new model"
HELD_OUT = "held out"
MULTIPLE = 8
SURE, DRAWS = 0.9, 200
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
    set: str = HELD_OUT
    regime: Regime | None = None
    """What errors are drawn by; None = none are."""
    tp: int = 1
    model: str = ""


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
    set: str = HELD_OUT
    short: str = ""
    """The target that limits the prediction."""
    error: float = 0.0
    """Predicted over measured, minus one, of that latency at the middle concurrency."""
    confidence: float | None = None
    """Share of draws in which the predicted number of instances suffices."""
    between: tuple[float, float] | None = None
    """Instances needed in 5 and in 95 % of the draws; infinite = no number meets the targets."""
    at_90: float | None = None
    """Instances that suffice in nine of ten draws."""

    @property
    def covered(self) -> bool | None:
        """Whether the implied number lies in the interval."""
        return None if self.between is None else self.between[0] <= self.implied <= self.between[1]

    @property
    def enough(self) -> bool | None:
        """Whether what holds in nine of ten draws suffices; None if no number does."""
        return None if self.at_90 in (None, math.inf) else self.at_90 >= self.implied

    @property
    def warned(self) -> bool:
        """Whether a plan would call the predicted number uncertain."""
        return self.confidence is not None and self.confidence < SURE


def groups(rows: Sequence[Mapping[str, Any]], prices: str = PRICES) -> list[Group]:
    """Groups with at least three concurrencies."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    of: dict[str, tuple[Regime, int, str]] = {}
    for row in rows:
        case = _CASE.search(row["case"])
        if row["truth"] != "closed loops" or row["prices"] != prices or case is None:
            continue
        isl, osl, count = map(int, case.groups())
        name = f"{row['model']} on {row['gpu']} TP{row['tp']}, {row['engine']}, {isl}/{osl}"
        model, _, precision = row["model"].partition(" ")
        of[name] = Regime("vllm", row["gpu"], precision or "16-bit", DENSE, CLOSED), row["tp"], model
        point = found.setdefault(name, {}).setdefault(count, {"osl": osl, "consistent": row["consistent"]})
        point[row["metric"]] = row["measured"], row["predicted"]
    made = []
    for name, points in found.items():
        sides = [
            tuple(Point(c, p["TTFT"][i], p["TPOT"][i], p["osl"]) for c, p in sorted(points.items()))
            for i in (0, 1)
        ]
        if len(points) >= 3:
            consistent = all(each["consistent"] for each in points.values())
            made.append(Group(name, *sides, consistent, HELD_OUT, *of[name]))
    return made


def highest(points: Sequence[Point], ttft_ms: float, tpot_ms: float) -> float | None:
    """The highest requests/s within both targets; between points it is linear in the logarithm of latency.

    Of a measured point left out, this gives the requests/s without bias (594 points: +0.8 % on average, where
    a straight line gives -4.1 %).
    """
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
            shares.append(math.log(limit / first) / math.log(last / first))
    return low.per_s + min(shares) * (high.per_s - low.per_s)


def answer(group: Group) -> Answer:
    """Instances that the measured and the predicted points imply."""
    index = len(group.measured) // 2
    middle, same = group.measured[index], group.predicted[index]
    targets = middle.ttft_ms, middle.tpot_ms
    measured, predicted = highest(group.measured, *targets), highest(group.predicted, *targets)
    assert measured is not None
    load = MULTIPLE * measured
    needed = None if predicted is None else math.ceil(load / predicted - 1e-9)
    alone = {
        "TTFT": highest(group.predicted, targets[0], math.inf) or 0.0,
        "TPOT": highest(group.predicted, math.inf, targets[1]) or 0.0,
    }
    short = min(alone, key=lambda name: alone[name])
    errors = {"TTFT": same.ttft_ms / middle.ttft_ms - 1, "TPOT": same.tpot_ms / middle.tpot_ms - 1}
    drawn = _drawn(group, load, targets)
    return Answer(
        group.name,
        targets,
        measured,
        predicted or 0.0,
        MULTIPLE,
        needed,
        group.consistent,
        group.set,
        short,
        errors[short],
        None if needed is None or not drawn else sum(each <= needed for each in drawn) / len(drawn),
        (drawn[len(drawn) // 20], drawn[-1 - len(drawn) // 20]) if drawn else None,
        drawn[math.ceil(SURE * len(drawn)) - 1] if drawn else None,
    )


def _drawn(group: Group, load: float, targets: tuple[float, float]) -> list[float]:
    """Instances needed in each draw of the errors of other servers, ascending."""
    regime = group.regime
    if regime is None:
        return []
    server = regime.engine, group.model, regime.precision, regime.gpu, group.tp
    others = [each for each in validated("trained") if each.server != server]
    needed: list[float] = []
    for draw in errors_in(regime, others, DRAWS, [("ttft", "mean")]).draws:
        ttft = draw.step * draw.residual.get(("ttft", "mean"), 1.0)
        truth = [replace(p, ttft_ms=p.ttft_ms * ttft, tpot_ms=p.tpot_ms * draw.step) for p in group.predicted]
        rate = highest(truth, *targets)
        needed.append(math.ceil(load / rate - 1e-9) if rate else math.inf)
    return sorted(needed)


def summary(answers: Sequence[Answer]) -> dict[str, float]:
    """Bias and shares, of the groups that do not contradict themselves."""
    consistent = [each for each in answers if each.consistent]
    known = [each for each in consistent if each.predicted is not None]
    off = [(each.predicted or 0) - each.implied for each in known]
    many = [each for each in consistent if each.predicted is None or each.predicted > each.implied + 1]
    by_ttft = [each for each in many if each.short == "TTFT"]
    return {
        "groups": len(consistent),
        "without_answer": len(consistent) - len(known),
        "bias_instances": sum(off) / max(len(off), 1),
        "median_instances": float(median(off)) if off else 0.0,
        "within_one": sum(abs(each) <= 1 for each in off) / max(len(consistent), 1),
        "fewer_by_more_than_one": sum(each < -1 for each in off),
        "of_these_without_a_warning": sum(
            each.predicted is not None and each.predicted < each.implied - 1 and not each.warned
            for each in consistent
        ),
        "in_the_interval": _share([each.covered for each in consistent]),
        "none_at_90": sum(each.at_90 == math.inf for each in consistent),
        "enough_at_90": _share([each.enough for each in consistent]),
        "more_by_more_than_one": len(many),
        "of_these_by_ttft": len(by_ttft),
        "their_median_ttft_error": float(median([each.error for each in by_ttft])) if by_ttft else 0.0,
    }


def _share(flags: Sequence[bool | None]) -> float:
    """Share of those that are known."""
    known = [each for each in flags if each is not None]
    return sum(known) / max(len(known), 1)


# --- points of public benchmarks ---------------------------------------------------------------------


def accuracy() -> dict[str, dict[str, Any]]:
    """The priced points of the accuracy page, by their ids, with relative `errors`."""
    points = json.loads((RESULTS / "accuracy.json").read_text(encoding="utf-8"))["points"]
    return {point["id"]: point for point in points if point.get("errors")}


def gathered(points: Iterable[Published]) -> Iterator[tuple[str, list[Published]]]:
    """Points of the same server and lengths, with at least three concurrencies."""
    found: dict[tuple[Any, ...], dict[int, Published]] = {}
    for point in points:
        if not point.refused:
            key = (point.engine, point.version, point.model, point.precision, point.gpu, point.gpus)
            key += (point.attention_dp, point.ep, point.prompt_tokens, point.output_tokens)
            found.setdefault(key, {})[point.concurrency] = point
    for key, by_concurrency in found.items():
        if len(by_concurrency) >= 3:
            yield _name(key), [point for _, point in sorted(by_concurrency.items())]


def _name(key: tuple[Any, ...]) -> str:
    engine, version, model, precision, gpu, gpus, replicas, ep, isl, osl = key
    wide = f"{f' DP{replicas}' if replicas > 1 else ''}{f' EP{ep}' if ep > 1 else ''}"
    name = model.rpartition("/")[2].lower()
    return f"{name} {precision} on {gpu} TP{gpus // replicas}{wide}, {engine} {version}, {isl}/{osl}"


def published_groups(
    kind: str, points: Iterable[Published], priced: Mapping[str, Mapping[str, Any]]
) -> Iterator[Group]:
    """Groups whose points are all priced."""
    for name, of in gathered(points):
        if any(point.id not in priced for point in of):
            continue
        measured = [_point(point, {}) for point in of]
        predicted = [_point(point, priced[point.id]["errors"]) for point in of]
        contradictory = any(point.impossible() or priced[point.id]["contradicted"] for point in of)
        first, form = of[0], of[0].shape().weights
        width = form.experts if first.shape().experts else form.dense
        precision = "16-bit" if width >= 2 else "FP8" if width >= 1 else "FP4"
        sort = EXPERTS if first.shape().experts else DENSE
        regime = Regime(first.engine, first.gpu, precision, sort, CLOSED)
        yield Group(
            *(name, tuple(measured), tuple(predicted), not contradictory, kind),
            *(regime, first.gpus, first.family),
        )


def _point(of: Published, errors: Mapping[str, float]) -> Point:
    """A measured point, off by relative errors."""
    latencies = (of.measured[name] * (1 + errors.get(name, 0.0)) for name in ("ttft.mean", "tpot.mean"))
    return Point(of.concurrency, *latencies, of.output_tokens)


# --- the page ----------------------------------------------------------------------------------------


_LEGEND = """* The points contradict each other or another run of the server: not in the first table.
*Confidence*: of the predicted number, by the errors of other servers; below 90 % a plan warns. *Interval*:
what 5 to 95 % of the draws of these errors need; the last of its numbers is what holds in nine of ten draws.
*Short*: the target that limits the prediction, and how far that latency is off at the middle concurrency,
where more instances are needed than measured.

The question is ill-posed where latency hardly grows with concurrency: there a per cent of latency is two to
five per cent of the requests/s within the targets, and a prediction that is 10 to 20 % too slow calls for
half as many instances again. Both targets are those of one measured point, so the worse of two errors counts.
The interval is the answer to use: of all groups {within:.0%} have a predicted number within one of the
measured one, {covered:.0%} have the measured one in the interval, and the number at 90 %, where there is one,
suffices in {enough:.0%}.

"""


def table(answers: Sequence[Answer]) -> str:
    """Markdown."""
    head = "# Instances: predicted against what the measured points imply\n\n"
    head += f"For {MULTIPLE} times the measured rate; by `python benchmarks/accuracy/instances.py`. "
    consistent = [each for each in answers if each.consistent]
    head += _LEGEND.format(
        within=summary(consistent)["within_one"],
        covered=_share([each.covered for each in consistent]),
        enough=_share([each.enough for each in consistent]),
    )
    parts = [head, _summaries(answers), "\n"]
    for kind in dict.fromkeys(each.set for each in answers):
        parts += [f"\n## {kind}\n\n", _rows([each for each in answers if each.set == kind])]
    return "".join(parts)


def _summaries(answers: Sequence[Answer]) -> str:
    lines = [
        "| set | groups | none meets them | bias | median | within one | in the interval "
        "| number at 90 %: none, suffices | fewer by more than one, without warning "
        "| more by more than one | of these by TTFT "
        "| whose error, median |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for kind in dict.fromkeys(each.set for each in answers):
        row = summary([each for each in answers if each.set == kind])
        lines.append(
            f"| {kind} | {row['groups']} | {row['without_answer']} | {row['bias_instances']:+.1f} "
            f"| {row['median_instances']:+.0f} | {row['within_one']:.0%} "
            f"| {row['in_the_interval']:.0%} "
            f"| {row['none_at_90']}, {row['enough_at_90']:.0%} "
            f"| {row['fewer_by_more_than_one']}, {row['of_these_without_a_warning']} "
            f"| {row['more_by_more_than_one']} "
            f"| {row['of_these_by_ttft']} | {row['their_median_ttft_error']:+.0%} |"
        )
    return "\n".join(lines) + "\n"


def _rows(answers: Sequence[Answer]) -> str:
    lines = [
        "| server, input/output tokens | targets TTFT / TPOT, ms | requests/s measured | predicted "
        "| instances | interval, at 90 % | confidence | short |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for each in answers:
        needed = "none meets them" if each.predicted is None else str(each.predicted)
        star = "" if each.consistent else " *"
        more = each.predicted is None or each.predicted > each.implied
        lines.append(
            f"| {each.group}{star} | {each.targets_ms[0]:.0f} / {each.targets_ms[1]:.1f} "
            f"| {each.measured_per_s:.3g} | {each.predicted_per_s:.3g} | {needed} for {each.implied} "
            f"| {_interval(each)} | {'' if each.confidence is None else f'{each.confidence:.0%}'} "
            f"| {f'{each.short} {each.error:+.0%}' if more else ''} |"
        )
    return "\n".join(lines) + "\n"


def _plain(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer for JSON, which has no infinite number: None = no number meets the targets."""

    def finite(value: Any) -> Any:
        if isinstance(value, tuple):
            return [finite(each) for each in value]
        return None if value == math.inf else value

    return {name: finite(value) for name, value in answer.items()}


def _interval(each: Answer) -> str:
    if each.between is None or each.at_90 is None:
        return ""
    low, high, sure = ("∞" if n == math.inf else f"{n:.0f}" for n in (*each.between, each.at_90))
    return f"{low} to {high}, {sure}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path, nargs="?")
    given = parser.parse_args()
    rows = json.loads((RESULTS / "real_engines.json").read_text(encoding="utf-8"))
    found = groups(rows)
    if given.data is not None:
        priced = accuracy()
        found += published_groups("inferencemax", published.inferencemax(given.data), priced)
        found += published_groups("silicon", published.silicon(given.data), priced)
    answers = [answer(group) for group in found]
    text = table(answers)
    print(text)
    sets = dict.fromkeys(each.set for each in answers)
    content = {
        "summary": {kind: summary([each for each in answers if each.set == kind]) for kind in sets},
        "groups": [_plain(asdict(each)) for each in answers],
    }
    (RESULTS / "instances.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "instances.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
