"""Tables of the accuracy page: errors by group, tails, goals, coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from outcomes import Outcome, by, configuration_of, engine_of

HOPPER = ("h100", "h200")
Groups = dict[str, list[Outcome]]
METRICS = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E"}


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
    for engine, some in sorted(by(of, engine_of).items()):
        for metric, label in METRICS.items():
            cells = [row_of(some, metric, statistic) for statistic in ("mean", "median", "p99")]
            if cells[2][0]:
                means = [cell[0] for cell in cells]
                lines.append(f"| {engine} | {len(some)} | {label} | {' | '.join(means)} | {cells[2][2]} |")
    return lines


def coverage(of: Sequence[Outcome]) -> list[str]:
    """Aggregated points on NVIDIA GPUs without multi-token prediction; the others beside them."""
    lines = ["| set, engine, GPU | points | priced | % | beside |", "|---|---:|---:|---:|---:|"]
    groups = by(of, lambda o: f"{o.point.source}, {engine_of(o)}, {o.point.gpu}")
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


def refusals(of: Sequence[Outcome]) -> list[str]:
    counts = Counter(o.refused for o in of if o.refused)
    return ["| reason | points |", "|---|---:|", *(f"| {why} | {n} |" for why, n in counts.most_common())]


def contradictions(of: Sequence[Outcome]) -> list[str]:
    rules = {"themselves": lambda o: o.contradictory, "another run": lambda o: o.point.contradicted}
    lines = [
        f"- {rule}: {name}, {len(some)} points"
        for rule, breaks in rules.items()
        for name, some in sorted(by((o for o in of if breaks(o)), configuration_of).items())
    ]
    return lines or ["None."]


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
    return [*lines, "", "Mean of the absolute errors."]
