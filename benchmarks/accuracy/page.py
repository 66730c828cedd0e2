"""The page of accuracy: every measured operating point that is known here, predicted by its own engine.

    python benchmarks/accuracy/page.py ../shared/data [--every 10] [--only sglang] [--out FOLDER]

Writes docs/accuracy.md and benchmarks/results/accuracy.json: coverage with the reasons of refusal, errors by
engine, kind of model and GPU with their tails, and the history from version to version. `--every` takes every
n-th point of each configuration; the page says so. Neither holds a measured figure, only errors.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from disaggregated_page import section
from points import NotExpressed, Point, inferencemax, silicon

from blis_py.latency.engine_terms import kind_of
from blis_py.latency.hardware import load_gpu
from blis_py.latency.layout import Layout
from blis_py.latency.learned import kind_of as kind_of_trained
from blis_py.latency.operators import Operators
from blis_py.latency.trained import bundled_training
from blis_py.version import __version__

ROOT = Path(__file__).resolve().parents[2]
APART = "prefill and decode on GPUs of their own"
BESIDE = ("prefill and decode", "multi-token", "AMD", "a disaggregated")
"""Reasons that do not count against coverage: not aggregated, with speculation, or not NVIDIA's."""
Groups = dict[str, list["Outcome"]]
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}


@dataclass(frozen=True)
class Outcome:
    """A point and its errors, or the reason why there are none."""

    point: Point
    errors: dict[str, float]
    """Predicted over measured minus 1, by metric and statistic."""
    refused: str = ""
    contradictory: bool = False
    learned: bool = False
    """Whether its configuration was among those that terms were learned on."""

    @property
    def aside(self) -> bool:
        return self.refused.startswith(BESIDE)


def outcome_of(point: Point) -> Outcome:
    try:
        predicted = point.predict()
    except NotExpressed as reason:
        return Outcome(point, {}, refused=str(reason))
    errors = {name: value / point.measured[name] - 1 for name, value in predicted.items()}
    return Outcome(point, errors, "", point.impossible(), _learned(point))


def _learned(point: Point) -> bool:
    """Whether its kind of model, format, GPU and division were learned on together."""
    run = point.simulation()
    shape, gpu = point.shape(), load_gpu(point.gpu)
    if not isinstance(run.latency, Operators):
        trained = bundled_training().learned
        return gpu.name in trained.gpus.get(kind_of_trained(shape), ()) and point.gpus in trained.tp
    layout = Layout(point.gpus, point.attention_dp, point.ep)
    return f"{kind_of(shape)} on {gpu.name} {layout}" in run.latency.learned_on


def sampled(points: Iterable[Point], every: int) -> Iterator[Point]:
    """Every n-th point of each configuration, shortest first."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for p in points:
        width = (p.gpus, p.ep, p.attention_dp)
        groups[p.source, p.engine, p.model, p.precision, p.gpu, width, p.refused].append(p)
    for group in groups.values():
        group.sort(key=lambda p: (p.prompt_tokens, p.output_tokens, p.concurrency))
        yield from group[::every]


# --- tables ------------------------------------------------------------------------------------------


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def row_of(of: Sequence[Outcome], metric: str, statistic: str = "mean") -> list[str]:
    """Mean and median of absolute errors, median with sign, share within 20 %."""
    errors = np.array([o.errors[f"{metric}.{statistic}"] for o in of if f"{metric}.{statistic}" in o.errors])
    if not len(errors):
        return ["", "", "", ""]
    size = np.abs(errors)
    near = float(np.mean(size <= 0.2))
    middle, bias = percent(float(np.median(size))), f"{100 * np.median(errors):+.1f}"
    return [percent(size.mean()), middle, bias, f"{100 * near:.0f}"]


def table(title: str, groups: Groups, metrics: Sequence[str] = ("ttft", "tpot")) -> list[str]:
    heads = [f"{METRICS[m]} {what}" for m in metrics for what in ("mean", "median", "bias", "≤ 20")]
    lines = [f"| {title} | points | {' | '.join(heads)} |", "|---|---:|" + "---:|" * len(heads)]
    for name, of in sorted(groups.items()):
        cells = [cell for metric in metrics for cell in row_of(of, metric)]
        lines.append(f"| {name} | {len(of)} | {' | '.join(cells)} |")
    return lines


def tails(of: Sequence[Outcome]) -> list[str]:
    lines = ["| engine | points | metric | mean | median | p99 | p99 bias |"]
    lines.append("|---|---:|---|---:|---:|---:|---:|")
    for engine, some in sorted(by(of, _engine).items()):
        for metric, label in METRICS.items():
            cells = [row_of(some, metric, statistic) for statistic in ("mean", "median", "p99")]
            if cells[2][0]:
                means = [cell[0] for cell in cells]
                lines.append(f"| {engine} | {len(some)} | {label} | {' | '.join(means)} | {cells[2][2]} |")
    return lines


def by(of: Iterable[Outcome], key: Callable[[Outcome], str]) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in of:
        found[key(outcome)].append(outcome)
    return dict(found)


def coverage(of: Sequence[Outcome]) -> list[str]:
    """Aggregated points on NVIDIA GPUs without multi-token prediction; the others beside them."""
    lines = ["| set, engine, GPU | points | priced | % | beside |", "|---|---:|---:|---:|---:|"]
    for name, some in sorted(by(of, lambda o: f"{o.point.source}, {_engine(o)}, {o.point.gpu}").items()):
        asked = [o for o in some if not o.aside]
        priced = [o for o in asked if not o.refused]
        share = f"{100 * len(priced) / len(asked):.0f}" if asked else ""
        lines.append(f"| {name} | {len(asked)} | {len(priced)} | {share} | {len(some) - len(asked)} |")
    return lines


def _engine(outcome: Outcome) -> str:
    return outcome.point.engine


def refusals(of: Sequence[Outcome]) -> list[str]:
    counts = Counter(o.refused for o in of if o.refused)
    return ["| reason | points |", "|---|---:|", *(f"| {why} | {n} |" for why, n in counts.most_common())]


def contradictions(of: Sequence[Outcome]) -> list[str]:
    groups = by((o for o in of if o.contradictory), _configuration)
    lines = [f"- {name}: {len(some)} points" for name, some in sorted(groups.items())]
    return lines or ["None."]


def _configuration(outcome: Outcome) -> str:
    p = outcome.point
    layout = Layout(p.gpus, p.attention_dp, p.ep)
    return f"{p.engine}, {p.family} {p.precision or '16 bits'} on {p.gpu} {layout}"


# --- the page ----------------------------------------------------------------------------------------

HEAD = """\
# Accuracy

Made by `python benchmarks/accuracy/page.py ../shared/data{options}` with blis-py {version}. Measured
operating points of public benchmarks (AIConfigurator's silicon samples, InferenceMAX; both Apache-2.0), each
predicted by its own engine, precision, width and launch flags; where a flag was not published, the default
applies. Nothing is fitted to a row or a configuration; which combinations the terms of an engine were learned
on is marked. Errors are predicted over measured minus 1, in per cent: mean and median of the absolute errors,
bias (the median with its sign), and the share of points within 20 %. How a step is priced:
[Which models, and how well](models.md). Recorded runs, single steps and our own engine: [trust](trust.md).
"""


def page(of: Sequence[Outcome], history: Sequence[dict[str, object]], options: str) -> str:
    priced = [o for o in of if o.errors]
    sound = [o for o in priced if not o.contradictory]
    parts = [
        HEAD.format(version=__version__, options=options),
        "## In short\n",
        *table("points", {"all": priced, "all but contradictory ones": sound}),
        *("", "## By engine\n", *table("engine", by(sound, _engine))),
        *(
            "",
            "## By kind of model\n",
            *table("model", by(sound, lambda o: f"{o.point.family} {_format(o)}")),
        ),
        *("", "## By GPU\n", *table("GPU", by(sound, lambda o: o.point.gpu))),
        *("", "## Learned on, or not\n", *table("configuration", by(sound, _learned_label))),
        *(
            "",
            "## Tails, where they were measured\n",
            *tails([o for o in sound if o.point.source != "silicon"]),
        ),
        *("", "## By configuration\n", *table("configuration", by(sound, _configuration))),
        *("", "## Coverage\n", *coverage(of)),
        *("", "Beside: points that are not of one aggregated engine on NVIDIA GPUs without speculation.\n"),
        *refusals(of),
        "\n## Points that contradict themselves\n",
        "With as many requests in flight as they say, computing their prompts at the datasheet's peak",
        "would take longer than the requests did. No prediction enters this rule.\n",
        *contradictions(priced),
        *section(),
        "\n## History\n",
        "| version | date | points | TTFT mean / median | TPOT mean / median |\n|---|---|---:|---:|---:|",
        *(f"| {h['version']} | {h['date']} | {h['points']} | {h['ttft']} | {h['tpot']} |" for h in history),
    ]
    return "\n".join(parts) + "\n"


def _format(outcome: Outcome) -> str:
    return outcome.point.precision or "16 bits"


def _learned_label(outcome: Outcome) -> str:
    return f"{outcome.point.engine}, {'learned on' if outcome.learned else 'not learned on'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--every", type=int, default=1, help="every n-th point of a configuration")
    parser.add_argument("--only", default="", help="points whose engine, model or GPU contains this")
    parser.add_argument("--out", type=Path, help="folder for both files instead of the repository's places")
    options = parser.parse_args()
    points = [p for p in (*silicon(options.data), *inferencemax(options.data)) if options.only in _label(p)]
    outcomes = [outcome_of(point) for point in sampled(points, options.every)]
    json_file = (options.out or ROOT / "benchmarks" / "results") / "accuracy.json"
    history = json.loads(json_file.read_text())["history"] if json_file.exists() else []
    history = [h for h in history if h["version"] != __version__] + [_entry(outcomes)]
    said = f" --every {options.every}" if options.every > 1 else ""
    page_file = (options.out or ROOT / "docs") / "accuracy.md"
    page_file.write_text(page(outcomes, history, said), encoding="utf-8")
    figures = ",\n".join(json.dumps(_figures(outcome)) for outcome in outcomes)
    head = f'"version": "{__version__}", "history": {json.dumps(history)}'
    json_file.write_text(f'{{{head}, "points": [\n{figures}\n]}}\n', encoding="utf-8")
    priced = [o for o in outcomes if o.errors]
    print("\n".join(table("engine", {"all": priced, **by(priced, _engine)})))


def _label(point: Point) -> str:
    return f"{point.source} {point.engine} {point.model} {point.gpu} {point.precision}"


def _entry(of: Sequence[Outcome]) -> dict[str, object]:
    sound = [o for o in of if o.errors and not o.contradictory]
    told = {metric: " / ".join(row_of(sound, metric)[:2]) for metric in ("ttft", "tpot")}
    return {"version": __version__, "date": f"{datetime.now(UTC):%Y-%m-%d}", "points": len(sound), **told}


def _figures(outcome: Outcome) -> dict[str, object]:
    """Errors of one point; no measured figure."""
    p = outcome.point
    said: dict[str, object] = {"id": p.id, "source": p.source, "configuration": ""}
    if outcome.refused:
        return {**said, "configuration": f"{p.engine}, {p.model} on {p.gpu}", "refused": outcome.refused}
    errors = {name: round(error, 4) for name, error in outcome.errors.items()}
    marks = {"contradictory": outcome.contradictory, "learned": outcome.learned}
    return {**said, "configuration": _configuration(outcome), "version": p.version, **marks, "errors": errors}


if __name__ == "__main__":
    main()
