"""The page of accuracy: every measured operating point that is known here, predicted by its own engine.

    python benchmarks/accuracy/page.py ../shared/data [--every 4] [--seconds 240] [--part 1/2]

Writes docs/accuracy.md and benchmarks/results/accuracy.json: coverage with the reasons of refusal, errors by
engine, kind of model and GPU with their tails, and the history from version to version. Predictions are kept
(`predictions.py`): a run that stops after some seconds is continued by the next one, parts may run beside
each other, and the page is written once all are there. Neither file holds a measured figure, only errors.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from blis_py import native

native.activate()  # ahead of the modules that it replaces

import marginal_prefill  # noqa: E402
from disaggregated_page import put  # noqa: E402
from page_text import ADOPTED, CONTRADICTED, FIRST_WAVE, HEAD, MARGINAL, MISSED  # noqa: E402
from point_sets import points_of  # noqa: E402
from points import Point  # noqa: E402
from predictions import Prediction, Predictions  # noqa: E402

from blis_py.hardware.layout import Layout  # noqa: E402
from blis_py.version import __version__  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
APART = "prefill and decode on GPUs of their own"
HOPPER = ("h100", "h200")
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
    without: dict[str, float] = field(default_factory=dict)
    """Errors by the terms that other model families show."""

    @property
    def aside(self) -> bool:
        return self.refused.startswith(BESIDE)

    @property
    def sound(self) -> bool:
        return bool(self.errors) and not self.contradictory and not self.point.contradicted


def outcome_of(point: Point, found: Prediction) -> Outcome:
    if "refused" in found:
        return Outcome(point, {}, refused=found["refused"])
    errors, without = (
        {name: found[key][name] / value - 1 for name, value in point.measured.items() if name in found[key]}
        if key in found
        else {}
        for key in ("predicted", "without")
    )
    return Outcome(point, errors, "", point.impossible(), found["learned"], without)


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
    groups = by(of, lambda o: f"{o.point.source}, {_engine(o)}, {o.point.gpu}")
    hopper = [o for o in of if o.point.gpu in HOPPER]
    totals = {
        **by(of, lambda o: f"{o.point.source}, all"),
        **by(hopper, lambda o: f"{o.point.source}, Hopper"),
    }
    for name, some in (*sorted(totals.items()), *sorted(groups.items())):
        counted = [o for o in some if not o.aside]
        priced = [o for o in counted if not o.refused]
        share = str(100 * len(priced) // len(counted)) if counted else ""
        lines.append(f"| {name} | {len(counted)} | {len(priced)} | {share} | {len(some) - len(counted)} |")
    return lines


def _engine(outcome: Outcome) -> str:
    return outcome.point.engine


def refusals(of: Sequence[Outcome]) -> list[str]:
    counts = Counter(o.refused for o in of if o.refused)
    return ["| reason | points |", "|---|---:|", *(f"| {why} | {n} |" for why, n in counts.most_common())]


def contradictions(of: Sequence[Outcome]) -> list[str]:
    rules = {"themselves": lambda o: o.contradictory, "another run": lambda o: o.point.contradicted}
    lines = [
        f"- {rule}: {name}, {len(some)} points"
        for rule, breaks in rules.items()
        for name, some in sorted(by((o for o in of if breaks(o)), _configuration).items())
    ]
    return lines or ["None."]


def _configuration(outcome: Outcome) -> str:
    p = outcome.point
    layout = Layout(p.gpus, p.attention_dp, p.ep)
    return f"{p.engine}, {p.family} {p.precision or '16 bits'} on {p.gpu} {layout}"


# --- the page ----------------------------------------------------------------------------------------


def page(of: Sequence[Outcome], history: Sequence[dict[str, object]], said: str) -> str:
    priced = [o for o in of if o.errors]
    sound = [o for o in priced if o.sound]
    sections = {
        "In short": table(
            "points",
            {
                "all": priced,
                "all but those that contradict themselves": [o for o in priced if not o.contradictory],
                "neither contradicting themselves nor another run": sound,
            },
        ),
        "Against the goals": [*goals(priced), "", *families(priced)],
        "By engine": table("engine", by(sound, _engine)),
        "By kind of model": table("model", by(sound, lambda o: f"{o.point.family} {_format(o)}")),
        "By GPU": table("GPU", by(sound, lambda o: o.point.gpu)),
        "By requests in flight": table("in flight", by(sound, _in_flight)),
        "Learned on, or not": table("configuration", by(sound, _learned_label)),
        "Adopted after errors were seen": ADOPTED.splitlines(),
        "Each model family left out": left_out(sound),
        "Tails, where they were measured": tails([o for o in sound if o.point.source != "silicon"]),
        "Marginal prefill": [
            *marginal_prefill.table((o.point, o.errors["ttft.mean"]) for o in sound),
            "",
            *MARGINAL.splitlines(),
        ],
        "What is missed, and why, as far as it is known": MISSED.splitlines(),
        "By configuration": table("configuration", by(sound, _configuration)),
        "Coverage": [
            *coverage(of),
            "",
            "Beside: points that are not of one aggregated engine on NVIDIA GPUs without speculation.",
            "",
            *refusals(of),
        ],
        "Points that contradict themselves, or each other": [
            *CONTRADICTED.splitlines(),
            "",
            *contradictions(priced),
            "",
            *FIRST_WAVE.splitlines(),
            "",
            *tails([o for o in priced if o.point.contradicted and o.point.source != "silicon"]),
        ],
        "History": [
            "| version | date | points | TTFT mean / median | TPOT mean / median |",
            "|---|---|---:|---:|---:|",
            *(
                f"| {h['version']} | {h['date']} | {h['points']} | {h['ttft']} | {h['tpot']} |"
                for h in history
            ),
        ],
    }
    parts = [f"## {title}\n\n" + "\n".join(lines) for title, lines in sections.items()]
    return "\n".join([HEAD.format(version=__version__, said=said), "\n\n".join(parts)]) + "\n"


def goals(of: Sequence[Outcome]) -> list[str]:
    """Mean errors beside the goals, of all points and of those that no other run contradicts; the first one
    has a goal for the median, too."""
    lines = ["| points | number | TTFT goal | TTFT | uncontradicted | TPOT goal | TPOT | uncontradicted |"]
    lines.append("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, (ttft, tpot, chosen) in GOALS.items():
        some = [o for o in of if chosen(o)]
        if some:
            sound = [o for o in some if o.sound]
            pairs = [" / ".join(row_of(each, m)[:2]) for m in ("ttft", "tpot") for each in (some, sound)]
            cells = [name, str(len(some)), ttft, *pairs[:2], tpot, *pairs[2:]]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "Mean / median of the absolute errors; the goals are means but for the first."]


def families(of: Sequence[Outcome]) -> list[str]:
    """Every family beside twice its goal, which is that of all points where it has none of its own."""
    lines = [
        "| family | number | TTFT | twice its goal | TPOT | twice its goal | below |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    for family, some in sorted(by(of, lambda o: o.point.family).items()):
        own = next((g for name, g in OWN_GOALS.items() if family.startswith(name)), OWN_GOALS[""])
        means = [100 * float(np.mean([abs(o.errors[f"{m}.mean"]) for o in some])) for m in ("ttft", "tpot")]
        below = "yes" if all(mean <= 2 * goal for mean, goal in zip(means, own, strict=True)) else "no"
        cells = " | ".join(f"{mean:.1f} | {2 * goal}" for mean, goal in zip(means, own, strict=True))
        lines.append(f"| {family} | {len(some)} | {cells} | {below} |")
    return lines


def _family(name: str) -> Callable[[Outcome], bool]:
    return lambda o: o.point.family.startswith(name)


def _of_engine(name: str) -> Callable[[Outcome], bool]:
    return lambda o: o.point.engine == name


GOALS: dict[str, tuple[str, str, Callable[[Outcome], bool]]] = {
    "all": ("22 / 16", "10", lambda o: True),
    "vLLM": ("20", "9", _of_engine("vllm")),
    "SGLang": ("25", "12", _of_engine("sglang")),
    "TensorRT-LLM": ("25", "12", _of_engine("trtllm")),
    "gpt-oss": ("15", "8", _family("gpt-oss")),
    "MiniMax": ("18", "8", _family("minimax")),
    "DeepSeek": ("25", "12", _family("deepseek")),
    "Llama-70B in FP8": (
        "15",
        "6",
        lambda o: o.point.family == "llama-3.1-70b" and o.point.precision == "fp8",
    ),
    "Blackwell": ("22", "9", lambda o: o.point.gpu in ("b200", "gb200", "b300", "gb300")),
}
OWN_GOALS = {"gpt-oss": (15, 8), "minimax": (18, 8), "deepseek": (25, 12), "": (22, 10)}
"""Goals of families; the last one is for all others."""


def left_out(of: Sequence[Outcome]) -> list[str]:
    """Points predicted by the terms that the other model families of their group show, and by all."""
    lines = [
        "| engine, model | points | TTFT without | TTFT | TPOT without | TPOT |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    some = [o for o in of if o.without]
    groups = {"all": some, **dict(sorted(by(some, lambda o: f"{o.point.engine}, {o.point.family}").items()))}
    for name, part in groups.items() if some else ():
        cells = [
            percent(float(np.mean([abs(errors[f"{metric}.mean"]) for errors in each])))
            for metric in ("ttft", "tpot")
            for each in ([o.without for o in part], [o.errors for o in part])
        ]
        lines.append(f"| {name} | {len(part)} | {' | '.join(cells)} |")
    return [*lines, "", "Mean of the absolute errors, on every sixth point."]


def _in_flight(outcome: Outcome) -> str:
    count = outcome.point.concurrency
    return "  1 to 8" if count <= 8 else " 9 to 64" if count <= 64 else "65 and more"


def _format(outcome: Outcome) -> str:
    return outcome.point.precision or "16 bits"


def _learned_label(outcome: Outcome) -> str:
    return f"{outcome.point.engine}, {'learned on' if outcome.learned else 'not learned on'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument(
        "--only", default="", help="points with these words in engine, model or GPU: sglang,b200"
    )
    parser.add_argument("--every", type=int, default=1, help="every n-th point of a configuration")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long; run again")
    parser.add_argument("--part", default="1/1", help="2/3: the second of three runs beside each other")
    parser.add_argument("--out", type=Path, help="folder for both files instead of the repository's places")
    options = parser.parse_args()
    part, parts = (int(text) for text in options.part.split("/"))
    wanted = options.only.split(",")
    chosen = sampled(points_of(options.data), options.every)
    points = [p for p in chosen if all(word in _label(p) for word in wanted)]
    predictions = Predictions(part)
    missing = predictions.make(points[part - 1 :: parts], options.seconds)
    found = [(point, prediction) for point in points if (prediction := predictions.of(point))]
    if len(found) < len(points):
        print(f"{len(found)} of {len(points)} points; {missing} of this part are missing: run again")
        return
    said = f" --every {options.every}" if options.every > 1 else ""
    write([outcome_of(*pair) for pair in found], options.out, said)


def write(outcomes: Sequence[Outcome], out: Path | None, said: str) -> None:
    json_file = (out or ROOT / "benchmarks" / "results") / "accuracy.json"
    history = json.loads(json_file.read_text())["history"] if json_file.exists() else []
    history = [h for h in history if (h["version"], h["date"]) != (__version__, _today())] + [
        _entry(outcomes)
    ]
    page_file = (out or ROOT / "docs") / "accuracy.md"
    page_file.write_text(put(page(outcomes, history, said)), encoding="utf-8")
    figures = ",\n".join(json.dumps(_figures(outcome)) for outcome in outcomes)
    head = f'"version": "{__version__}", "history": {json.dumps(history)}'
    json_file.write_text(f'{{{head}, "points": [\n{figures}\n]}}\n', encoding="utf-8")
    priced = [o for o in outcomes if o.errors]
    print("\n".join(table("engine", {"all": priced, **by(priced, _engine)})))


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _label(point: Point) -> str:
    return f"{point.source} {point.engine} {point.model} {point.gpu} {point.precision}"


def _entry(of: Sequence[Outcome]) -> dict[str, object]:
    sound = [o for o in of if o.sound]
    figures = {metric: " / ".join(row_of(sound, metric)[:2]) for metric in ("ttft", "tpot")}
    return {"version": __version__, "date": _today(), "points": len(sound), **figures}


def _figures(outcome: Outcome) -> dict[str, object]:
    """Errors of one point; no measured figure."""
    p = outcome.point
    said: dict[str, object] = {"id": p.id, "source": p.source, "configuration": ""}
    if outcome.refused:
        return {**said, "configuration": f"{p.engine}, {p.model} on {p.gpu}", "refused": outcome.refused}
    errors = {name: round(error, 4) for name, error in outcome.errors.items()}
    marks: dict[str, object] = {
        "contradictory": outcome.contradictory,
        "contradicted": p.contradicted,
        "learned": outcome.learned,
    }
    if outcome.without:
        marks["without"] = {name: round(error, 4) for name, error in outcome.without.items()}
    return {**said, "configuration": _configuration(outcome), "version": p.version, **marks, "errors": errors}


if __name__ == "__main__":
    main()
