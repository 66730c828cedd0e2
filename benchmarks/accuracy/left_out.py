"""Errors on what was left out in turn (a source, a model family, a GPU), and intervals that cover there.

    python benchmarks/accuracy/left_out.py

Reads what other scripts of this folder wrote to `benchmarks/results` and simulates nothing. A record is a run
with the errors of its means, and what its prediction had not learned on: nothing of its source (recorded open
and closed loops of servers that no script learns on), its model family (terms of the others, in the
benchmarks; `trained` without the model), its GPU (`trained` without it; cards of no source), or
none of these.

Intervals are those of conformal prediction: predicted times exp(±q), with q the quantile of the sizes of
ln(measured / predicted) among records of other groups. Records of one server (engine, model, format, GPU and
width) are alike and count as one: each server has the same weight, and one more stands for the new one
(Dunn, Wasserman and Ramdas, "Distribution-free prediction sets for two-layer hierarchical models", JASA
2023). Records of what was learned on are those of the same engine and kind of model; where these are of
fewer than `SERVERS` servers, the kind of model is dropped, then the engine, and for E2E the errors of TPOT
stand in. Records of what was not are those from which `blis plan` draws for such servers, without one more
(`blis_py/planning/unlearned.py`). Whether they cover is tested on each source, family and GPU, with q from
all others; the choice of what is alike was made on the same records.

Writes `results/left_out.md` and `results/left_out.json`, which the program reads: the records of what was not
learned on, and the combinations that were.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.planning import unlearned
from blis_py.planning.validated import CLOSED, DENSE, EXPERTS, OPEN, SATURATED, Validated

RESULTS = Path(__file__).resolve().parents[1] / "results"
LEVEL, SERVERS = 0.9, 9
"""Share of the records that an interval is to hold, and the fewest servers that can say so: with k of them,
the largest error is the quantile k / (k + 1)."""
METRICS = ("ttft", "tpot", "e2e")
Row = dict[str, Any]
_OPEN_RUNS = "five H100 runs"
DISTANCES = ("learned on", "source or family not learned on", "GPU not learned on")
_LEARNED = (_OPEN_RUNS, "closed loops")
"""Sources whose servers were left out one at a time: terms that are shipped were learned on all of them."""
_BUNDLED = {"deepseek": "deepseek-v3"}
"""Models by families that are not named like one."""
_DENSE = ("llama-2", "llama-3", "codellama", "qwen3-32b", "qwen3-1.7b", "qwen3-8b", "qwen3-14b")
_CONFIGURATION = re.compile(
    r"(?P<engine>\w+), (?P<family>\S+) (?P<form>16 bits|fp8|fp4) on (?P<gpu>\S+) (?P<layout>.*)"
)
_FORMATS = {"FP8": "fp8", "": "16 bits"}
_PRECISIONS = {"16 bits": "16-bit", "fp8": "FP8", "fp4": "FP4"}
_CLOSED_POINT = re.compile(r"(?P<family>qwen3-[\d.]+b)-(?P<gpu>\w+)-.*")


@dataclass(frozen=True)
class Record:
    """A run under one prediction."""

    source: str
    engine: str
    family: str
    form: str
    gpu: str
    layout: str
    distance: str
    left_out: str
    """`source`, `family` or `GPU`, or empty."""
    errors: dict[str, float]
    """Predicted over measured minus one, of means."""
    load: str = CLOSED
    tails: Mapping[str, float] = field(default_factory=dict)
    """The same of p99, where it was measured."""

    @property
    def kind(self) -> str:
        return DENSE if self.family.startswith(_DENSE) else EXPERTS

    @property
    def server(self) -> tuple[str, ...]:
        return self.source, self.engine, self.family, self.form, self.gpu, self.layout

    @cached_property
    def validated(self) -> Validated:
        """The record as plans draw from it."""
        ratios = {(metric, "mean"): 1 / (1 + error) for metric, error in self.errors.items()}
        ratios |= {(metric, "p99"): 1 / (1 + error) for metric, error in self.tails.items()}
        width = re.match(r"TP(\d+)", self.layout)
        return Validated(
            case=self.source,
            model=self.family,
            gpu=self.gpu,
            tp=int(width[1]) if width else 1,
            precision=_PRECISIONS[self.form],
            kind=self.kind,
            load=self.load,
            held_out=self.distance,
            ratios=ratios,
            engine=self.engine,
            source=self.source,
            layout=self.layout,
        )


# --- reading -----------------------------------------------------------------------------------------


def records() -> list[Record]:
    return [*_points(), *_closed_loops(), *_open_loops(), *_others()]


def _points() -> Iterator[Record]:
    """Points of both benchmarks that contradict neither themselves nor another."""
    for point in _read("accuracy.json")["points"]:
        match = _CONFIGURATION.fullmatch(point["configuration"])
        if match is None or not point.get("errors") or point["contradictory"] or point["contradicted"]:
            continue
        own = point["source"], *match.group("engine", "family", "form", "gpu", "layout")
        distance = DISTANCES[0 if point["learned"] else 1]
        yield Record(*own, distance, "", _means(point["errors"]))
        if point.get("without"):
            yield Record(*own, DISTANCES[1], "family", _means(point["without"]))


def _means(errors: dict[str, float]) -> dict[str, float]:
    named = {name.replace("e2el", "e2e"): error for name, error in errors.items()}
    return {m: named[f"{m}.mean"] for m in METRICS if f"{m}.mean" in named}


def _closed_loops() -> Iterator[Record]:
    """Dense models under vLLM, by `trained` without the run, the model or the GPU."""
    found: dict[tuple[str, ...], dict[str, dict[str, float]]] = defaultdict(lambda: {"mean": {}, "p99": {}})
    for row in _read("real_engines.json"):
        prices, _, left_out = row["prices"].partition(", ")
        if prices == "trained" and left_out and row["consistent"] and row["statistic"] in ("mean", "p99"):
            family, _, form = row["model"].partition(" ")
            own = row["truth"], "vllm", family, _FORMATS.get(form, form), row["gpu"], f"TP{row['tp']}"
            load = SATURATED if row["near_saturation"] else OPEN if row["truth"] == _OPEN_RUNS else CLOSED
            error = row["predicted"] / row["measured"] - 1
            found[*own, left_out, load, row["case"]][row["statistic"]][row["metric"].lower()] = error
    for (*own, left_out, load, _), errors in found.items():
        distance = DISTANCES[2 if left_out == "new GPU" else 1]
        what = {"new GPU": "GPU", "new model": "family", "run left out": "source"}[left_out]
        yield Record(*own, distance, what, errors["mean"], load, errors["p99"])


def _open_loops() -> Iterator[Record]:
    for row in _read("open_loops.json"):
        form = "fp8" if row["model"].endswith("-fp8") else "16 bits"
        own = "open loops", "vllm", row["model"].removesuffix("-fp8"), form, row["gpu"], f"TP{row['tp']}"
        errors = {name.lower().partition(" ")[0]: error for name, error in row["errors"].items()}
        load = SATURATED if row["near_saturation"] else OPEN
        yield Record(*own, DISTANCES[2 if row["gpu"].startswith("a100") else 1], "source", errors, load)


def _others() -> Iterator[Record]:
    """Recorded runs that `truth.py` predicts: closed loops of a third source, cards of no source, and experts
    under vLLM."""
    figures = _read("truth.json")["figures"]
    runs: dict[tuple[str, ...], dict[str, dict[str, float]]] = defaultdict(lambda: {"mean": {}, "p99": {}})
    for name, error in figures["open loops"].items():
        if match := _CLOSED_POINT.match(name):
            own = "closed loops of pull requests", "vllm", match["family"], "16 bits", match["gpu"], "TP1"
            case, _, metric = name.rpartition(" ")
            runs[*own, CLOSED, case]["mean"][metric.partition(".")[0]] = error
    for name, error in figures["rtx"].items():
        card, by, metric, statistic = (name.split()[0], *name.split()[-3:])
        if by == "trained" and statistic in ("mean", "p99") and metric.lower() in METRICS:
            own = "two RTX runs", "vllm", "llama-3.1-8b", "16 bits", card.lower(), "TP1"
            runs[*own, SATURATED, card][statistic][metric.lower()] = error
    for name, error in figures["h100"].items():
        run, metric, statistic = name.rsplit(" ", 2)
        if run.startswith("mixtral") and statistic in ("mean", "p99") and metric.lower() in METRICS:
            own = "six H100 runs", "vllm", "mixtral-8x7b", "16 bits", "h100", "TP2"
            runs[*own, OPEN, run][statistic][metric.lower()] = error
    for (*own, load, _), errors in runs.items():
        distance = DISTANCES[1 if own[4] == "h100" else 2]
        yield Record(*own, distance, "source", errors["mean"], load, errors["p99"])


def _read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


# --- intervals ---------------------------------------------------------------------------------------

_ALIKE: tuple[Callable[[Record], object], ...] = (
    lambda r: (r.distance, r.engine, r.kind),
    lambda r: (r.distance, r.engine),
    lambda r: r.distance,
)
_STANDS_IN = {"e2e": "tpot"}
"""Metric whose errors stand in at a distance at which another was measured on few servers."""


def half_width(record: Record, others: Sequence[Record], metric: str) -> float:
    """q of a record; see the module."""
    if record.distance != DISTANCES[0]:
        return _of_unlearned(record, others, metric)
    for measured in (metric, _STANDS_IN.get(metric, metric)):
        known = [r for r in others if measured in r.errors]
        for part in _ALIKE:
            alike = [r for r in known if part(r) == part(record)]
            if len({r.server for r in alike}) >= SERVERS:
                return _quantile(alike, measured)
    return _quantile([r for r in others if metric in r.errors], metric)


def _of_unlearned(record: Record, others: Sequence[Record], metric: str) -> float:
    own = record.validated
    runs = [other.validated for other in others if other.distance != DISTANCES[0]]
    runs = [run for run in runs if run.ratio(metric, "mean") or metric == "e2e"]
    alike = unlearned.alike(own.kind, own.precision, own.load, runs)
    found = unlearned.half_width(alike, metric, "mean", LEVEL)
    assert found is not None
    return found


def _quantile(of: Sequence[Record], metric: str) -> float:
    """Of the sizes of errors, each server with the same weight and one more that is larger than all."""
    counts = Counter(r.server for r in of)
    sizes = np.array([size(r, metric) for r in of])
    weights = np.array([1 / counts[r.server] for r in of]) / (len(counts) + 1)
    order = np.argsort(sizes)
    return float(np.interp(LEVEL, np.cumsum(weights[order]), sizes[order]))


def size(record: Record, metric: str) -> float:
    """|ln(measured / predicted)|."""
    return abs(float(np.log1p(record.errors[metric])))


# --- what is left out in turn ------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """Parts that are left out in turn, and records on which errors and intervals are judged."""

    group_of: Callable[[Record], str]
    judged: Callable[[Record], object]


TURNS = {
    "source": Turn(lambda r: r.source, lambda r: r.left_out == "source" or not r.left_out),
    "family": Turn(lambda r: r.family, lambda r: r.left_out in ("source", "family")),
    "GPU": Turn(lambda r: r.gpu, lambda r: r.distance == DISTANCES[2]),
}


def rows(of: Sequence[Record], turn: Turn) -> Iterator[Row]:
    """A row for each part and metric."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in of:
        if turn.judged(record):
            groups[turn.group_of(record)].append(record)
    for name, own in sorted(groups.items()):
        others = [record for record in of if turn.group_of(record) != name]
        for metric in METRICS:
            if measured := [record for record in own if metric in record.errors]:
                yield _row(name, measured, others, metric)


def _row(name: str, own: Sequence[Record], others: Sequence[Record], metric: str) -> Row:
    known: dict[tuple[str, ...], float] = {}
    for record in own:
        if (alike := _alike_of(record)) not in known:
            known[alike] = half_width(record, others, metric)
    widths = np.array([known[_alike_of(record)] for record in own])
    errors = np.array([record.errors[metric] for record in own])
    held = np.array([size(record, metric) for record in own]) <= widths
    learned = sum(record.distance == DISTANCES[0] for record in own)
    return {
        "left_out": name,
        "metric": metric,
        "records": len(own),
        "of_learned_kinds": learned,
        "mean": _figure(np.abs(errors).mean()),
        "median": _figure(np.median(np.abs(errors))),
        "bias": _figure(errors.mean()),
        "p90": _figure(np.quantile(np.abs(errors), 0.9)),
        "covered": _figure(held.mean()),
        "median_width": _figure(np.median(np.expm1(widths))),
    }


def _alike_of(record: Record) -> tuple[str, ...]:
    """What an interval depends on."""
    return record.distance, record.engine, record.kind, record.form, record.load


def _figure(value: Any) -> float:
    return round(float(value), 4)


def together(found: Sequence[Row], metric: str) -> Row:
    """All parts of a turn."""
    own = [row for row in found if row["metric"] == metric]
    counts = [row["records"] for row in own]
    means = {
        key: _figure(np.average([row[key] for row in own], weights=counts))
        for key in ("mean", "bias", "covered")
    }
    mean_of_parts = _figure(np.mean([row["covered"] for row in own]))
    return {"metric": metric, "records": sum(counts), **means, "covered_mean_of_parts": mean_of_parts}


# --- the results -------------------------------------------------------------------------------------

_HEAD = """# What was left out in turn

Made by `python benchmarks/accuracy/left_out.py`, which says how. Errors are of means, predicted over
measured minus one, without sign but for the bias. *Held* is the share of records in the 90 % interval, whose
width comes from all other parts, and the last column its median half width.
"""
_ABOUT = {
    "source": """A source left out of the intervals. Terms were learned on some points of `silicon` and
`inferencemax`: their errors are none on an unknown source. Nothing was learned of the others.""",
    "family": """A model family left out of terms and intervals, or a source of which nothing was learned.""",
    "GPU": """A GPU left out of `trained` and of intervals, or one that nothing was learned on. Terms of
engines were not learned without a GPU.""",
}


def page(found: dict[str, list[Row]]) -> str:
    lines = [_HEAD]
    for turn, of in found.items():
        lines += [f"## Left out: {turn}", "", _ABOUT[turn], ""]
        lines += ["| left out | metric | records | mean | median | bias | p90 | held | half width |"]
        lines += ["|---|---|---:|---:|---:|---:|---:|---:|---:|"]
        for row in of:
            shares = [f"{row[key]:.0%}" for key in ("mean", "median")] + [f"{row['bias']:+.0%}"]
            shares += [f"{row[key]:.0%}" for key in ("p90", "covered", "median_width")]
            head = f"{row['left_out']} | {row['metric'].upper()} | {row['records']:,}"
            lines.append(f"| {head} | {' | '.join(shares)} |")
        lines.append("")
        for all_of in (together(of, metric) for metric in METRICS):
            held, of_parts = all_of["covered"], all_of["covered_mean_of_parts"]
            off = f"{all_of['mean']:.1%} off in the mean of {all_of['records']:,} records"
            kept = f"intervals hold {held:.1%} of them ({of_parts:.1%} in the mean of parts)"
            lines += [f"{all_of['metric'].upper()}: {off}; {kept}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def data(of: Sequence[Record]) -> dict[str, Any]:
    """What the program reads."""
    far = [record for record in of if record.distance != DISTANCES[0]]
    # of what was left out of terms one at a time, the terms of the program know all
    near = [record for record in of if record.distance == DISTANCES[0] or record.source in _LEARNED]
    learned = {(r.engine, _BUNDLED.get(r.family, r.family), _PRECISIONS[r.form], r.gpu) for r in near}
    return {"learned": sorted(learned), "unlearned": [_as_row(record.validated) for record in far]}


def _as_row(run: Validated) -> dict[str, Any]:
    ratios = {f"{metric}.{stat}": _figure(ratio) for (metric, stat), ratio in run.ratios.items()}
    return {**asdict(run), "ratios": ratios}


def _as_json(found: Mapping[str, Any]) -> str:
    """A line for each row."""
    parts = []
    for name, value in found.items():
        rows = ",\n".join(f"  {json.dumps(row)}" for row in value) if name in ("learned", "unlearned") else ""
        parts.append(f' "{name}": ' + (f"[\n{rows}\n ]" if rows else json.dumps(value)))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    of = records()
    found = {name: list(rows(of, turn)) for name, turn in TURNS.items()}
    whole = {name: [together(each, metric) for metric in METRICS] for name, each in found.items()}
    text = _as_json({"level": LEVEL, "parts": found, "together": whole, **data(of)})
    (RESULTS / "left_out.json").write_text(text, encoding="utf-8")
    (RESULTS / "left_out.md").write_text(page(found), encoding="utf-8")
    for name, each in whole.items():
        for row in each:
            print(name, row)


if __name__ == "__main__":
    main()
