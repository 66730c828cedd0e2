"""How well real engines are predicted: every truth that is known here, in one table.

    python benchmarks/accuracy/real_engines.py ../shared/data [--kernel-tables]

Writes benchmarks/results/real_engines.md, and real_engines.json with every predicted and measured figure,
from which a picture can be drawn. Nothing is fitted to what is predicted:

- five runs of vLLM 0.15.1 on H100: coefficients learned without the steps of the run, front end learned on
  the other four runs;
- two runs of vLLM 0.19 on RTX cards: kernels measured on the card;
- closed-loop benchmarks of vLLM 0.12 to 0.19 on H100, H200 and B200 (silicon.py), also with coefficients that
  were learned without the model or the GPU. The host time of vLLM 0.12 was learned on the 16-bit points, so
  their TPOT is no test of it; host_time.py holds them out;
- our own engine on a CPU, from the committed results of engine_runs.py.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import h100_runs
import numpy as np
import silicon
import vllm_runs
from engine_table import own_engine, read_rows

from blis_py.latency.trained import Training, bundled_training

RESULTS = Path(__file__).resolve().parents[1] / "results"
SHIPPED = "trained, asynchronous, front end of the other runs"
"""What h100_runs.py calls the coefficients as they are committed."""


NEAR_SATURATION = "llama-2-70b-tp4-general"
PAUSES = "llama-2-7b-tp1-codegen", "llama-2-7b-tp1-roleplay"
"""Of the five runs, one in which many requests are held up, and a usual one."""
SAME_ANSWERS = (4096, 8192), (1024, 8192), (1024, 2048)
"""Tokens of a prompt, and of a step at most."""


@dataclass(frozen=True)
class Figure:
    """One measured figure and its prediction, ms."""

    truth: str
    engine: str
    model: str
    gpu: str
    tp: int
    case: str
    metric: str
    statistic: str
    prices: str
    """Where the step times come from."""
    predicted: float
    measured: float
    consistent: bool = True
    """Whether the figures of its group can be true together."""
    near_saturation: bool = False

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


TERMS = """
- **Waiting for other ranks at TP > 1** (five runs, TPOT and E2E). Only two of them have several ranks, \
so each is predicted by what the other shows: {wait_34b:.2f} us for each rank and stage of an all-reduce \
without CodeLlama-34B TP2, {wait_70b:.2f} us without Llama-2-70B TP4, and {wait:.2f} us with both. What the \
host takes in every step is {host_least:.0f} to {host_most:.0f} us, whichever run is left out. With all runs \
learned on, E2E is off by {shipped} (h100_runs.json). The run of 70B is near saturation: steps that are \
{tpot_70b} off make its TTFT {ttft_70b} off, and {p99_70b} in the p99: without this run the mean errors are \
{mean_others} and {p99_others}.
- **Pauses of a server or its clients** (five runs, p99 of TTFT). In the run of code {late_code} of the \
requests got their first token more than 8 ms later than others of the same ten seconds, for no reason \
that the engine's record shows, in that of role play {late_role}. They are its p99, which is {p99_code} off, \
and {p99_left} without them.
- **Prompts in FP8** (closed loops, TTFT on H100). The FP8 terms are right on the mean of many shapes, but \
{h100_trained} off on these; priced with the GPU's own kernels the same points are {h100_tables} off.
- **Lengths** (closed loops, TTFT of Qwen3-32B in 16 bits). With lengths drawn from [0.8 L, L] the median \
error is {drawn}. If only prompts are drawn and every answer has its nominal length, requests that began \
together end together and wait for each other's prompts again: those of 4,096 tokens are then \
{long_prompts} off, those of 1,024 tokens {short_prompts}, but {short_steps} if their steps took 2,048 \
tokens instead of 8,192. TPOT hardly depends on either. Neither is stated for these points.
- **Something before the first token on B200 TP4** (closed loops). What is missing is {short:.0f} ms in \
the median for prompts of 1,024 tokens and {long:.0f} ms for 8,192, where computing them takes eight times \
as long: no step time explains that. A front end does, or kernels that are compiled on first use, which \
the mean of 40 to 640 requests does not forget.
- **Points that contradict each other** (Llama-3.1-8B in FP8, vLLM 0.12). No step times explain them, if as \
many requests were in flight as they say.
"""
"""What is known of the errors that are left; one line each."""


# --- truths ------------------------------------------------------------------------------------------


def _learned_runs(data: Path) -> list[h100_runs.Run]:
    names = json.loads((RESULTS / "trained.json").read_text())["without_run"]
    return [h100_runs.read(data / "vllm_h100_runs", name) for name in names]


def five_runs(data: Path) -> list[Figure]:
    """Of the runs that were learned on, leave one out: what it and its steps teach of the host, and of the
    front end."""
    runs, found = _learned_runs(data), []
    for run in runs:
        training = Training(silicon.without("run", run.name), ("others",))
        records = {other.name: h100_runs.predict(other, training=training) for other in runs}
        others = [other for other in runs if other is not run]
        front_end = h100_runs.front_end_of(others, [records[other.name] for other in others])
        about = ("five H100 runs", "vLLM 0.15.1", run.facts["model"], "h100", run.facts["tp"], run.name)
        for name, figures in h100_runs.figures(run, records[run.name], front_end).items():
            metric, statistic = name.split()
            near = run.name == NEAR_SATURATION
            found.append(
                Figure(*about, metric, statistic, "trained, run left out", *figures, near_saturation=near)
            )
    return found


def rtx_runs(data: Path) -> list[Figure]:
    """Kernels measured on the card."""
    found = []
    for card, gpu in vllm_runs.GPUS.items():
        for metric, error in vllm_runs.errors(data / "vllm_runs", card).items():
            if metric.startswith("first"):
                continue
            for statistic, relative in (("mean", error.mean), ("p99", error.p99)):
                measured = vllm_runs.measured_ms(data / "vllm_runs", card, metric, statistic)
                about = ("two RTX runs", "vLLM 0.19", vllm_runs.MODEL.lower(), gpu, 1, card)
                found.append(
                    Figure(*about, metric, statistic, "kernel-tables", measured * (1 + relative), measured)
                )
    return found


def closed_loops(data: Path, tables: bool, points: Sequence[silicon.Point] | None = None) -> list[Figure]:
    """Every point of silicon.py, by every source of prices."""
    found = []
    points = silicon.points(data) if points is None else points
    runs = [silicon.simulation(point) for point in points]
    busy = [point.prompts_busy(run.latency) for point, run in zip(points, runs, strict=True)]
    contradictory = {point.group for point, share in zip(points, busy, strict=True) if share > 1}
    prices = {
        "trained": lambda run, point: run,
        "trained, new model": lambda run, point: silicon.held_out(run, point, "model"),
        "trained, new GPU": lambda run, point: silicon.held_out(run, point, "gpu"),
    }
    if tables:
        prices["kernel-tables"] = lambda run, point: silicon.with_kernels(run, point, data)
    for point, run in zip(points, runs, strict=True):
        model = f"{point.model}{' FP8' if point.fp8 else ''}"
        engine = f"vLLM {point.version}" if point.version else "vLLM, version not stated"
        about = ("closed loops", engine, model, point.gpu, point.tp, point.id)
        for name, priced in prices.items():
            ttft, tpot = silicon.predict(priced(run, point))
            for metric, ms, true_ms in (("TTFT", ttft, point.ttft_ms), ("TPOT", tpot, point.tpot_ms)):
                consistent = point.group not in contradictory
                found.append(Figure(*about, metric, "mean", name, ms, true_ms, consistent))
    return found


# --- tables ------------------------------------------------------------------------------------------


def mean_error(figures: Iterable[Figure]) -> float:
    return float(np.mean([abs(figure.error) for figure in figures]))


def _where(figures: Iterable[Figure], **wanted: object) -> list[Figure]:
    return [f for f in figures if all(getattr(f, key) == value for key, value in wanted.items())]


def goals(figures: Sequence[Figure]) -> list[str]:
    """Mean absolute errors beside what they should be."""
    five, rtx = _where(figures, truth="five H100 runs"), _where(figures, truth="two RTX runs")
    rows = []

    def row(truth: str, metric: str, wanted: str, found: str) -> None:
        rows.append(f"| {truth} | {metric} | {wanted} | {found} |")

    def pair(of: Sequence[Figure], metric: str) -> str:
        errors = [mean_error(_where(of, metric=metric, statistic=s)) for s in ("mean", "p99")]
        return " / ".join(f"{error:.1%}" for error in errors)

    row("five H100 runs, leave one run out", "E2E mean / p99", "2.5 / 2.6 %", pair(five, "E2E"))
    row("", "TTFT mean / p99", "4 / 13 %", pair(five, "TTFT"))
    row("", "TPOT mean / p99", "2.5 %", pair(five, "TPOT"))
    rtx_errors = [mean_error(_where(rtx, statistic=s)) for s in ("mean", "p99")]
    row(
        "two RTX runs, measured kernels",
        "all means / p99",
        "1 / 2.2 %",
        " / ".join(f"{e:.1%}" for e in rtx_errors),
    )
    loops = [f for f in figures if f.truth == "closed loops" and f.prices == "trained"]
    points = len({f.case for f in loops})
    row("closed loops, dense, 16 bits and FP8", "coverage", "all", f"{points} of {points}")
    for name, of in (
        ("", loops),
        (", without groups that contradict themselves", _where(loops, consistent=True)),
    ):
        errors = [mean_error(_where(of, metric=metric)) for metric in ("TTFT", "TPOT")]
        wanted = "15 / 12 %" if not name else ""
        row("", f"TTFT / TPOT{name}", wanted, " / ".join(f"{error:.1%}" for error in errors))
    rows.append(own_engine(read_rows()))
    return ["| truth | metric | goal | error |", "| --- | --- | --- | --- |", *rows]


def by_group(figures: Sequence[Figure]) -> list[str]:
    """Closed loops by model, GPU and TP degree: median of the absolute errors, and median with sign."""
    loops = [f for f in figures if f.truth == "closed loops"]
    prices = list(dict.fromkeys(f.prices for f in loops))
    heads = [f"{metric}, {name}" for metric in ("TTFT", "TPOT") for name in prices]
    lines = ["| model, GPU | points | " + " | ".join(heads) + " |", "| --- | ---: |" + " ---: |" * len(heads)]
    groups = dict.fromkeys((f.model, f.gpu, f.tp, f.engine, f.consistent) for f in loops)
    for model, gpu, tp, engine, consistent in sorted(groups):
        of = _where(loops, model=model, gpu=gpu, tp=tp, engine=engine)
        cells = [
            f"{np.median(np.abs(e)):.0%} ({np.median(e):+.0%})"
            for metric in ("TTFT", "TPOT")
            for name in prices
            for e in [[f.error for f in _where(of, metric=metric, prices=name)]]
        ]
        star = "" if consistent else " *"
        points = len({f.case for f in of})
        lines.append(f"| {model} on {gpu} TP{tp}, {engine}{star} | {points} | " + " | ".join(cells) + " |")
    return lines


def by_run(figures: Sequence[Figure]) -> list[str]:
    """The recorded runs, one row each."""
    names = [f"{metric} {statistic}" for metric in ("TTFT", "TPOT", "E2E") for statistic in ("mean", "p99")]
    lines = ["| run | " + " | ".join(names) + " |", "| --- |" + " ---: |" * len(names)]
    recorded = [f for f in figures if f.truth != "closed loops"]
    for case in dict.fromkeys(f.case for f in recorded):
        cells = [
            f"{_where(recorded, case=case, metric=m, statistic=s)[0].error:+.1%}"
            for m, s in (name.split() for name in names)
        ]
        lines.append(f"| {case} | " + " | ".join(cells) + " |")
    return lines


def same_answers(data: Path, prompt_tokens: int, step_tokens: int) -> tuple[float, float]:
    """Least and largest error of the TTFT of the 16-bit points with such prompts, if all answers had the
    nominal length and a step so many tokens at most."""
    points = [p for p in silicon.points(data) if not p.fp8 and p.prompt_tokens == prompt_tokens]
    runs = [silicon.simulation(point, same_answers=True, step_tokens=step_tokens) for point in points]
    errors = [silicon.predict(run)[0] / point.ttft_ms - 1 for run, point in zip(runs, points, strict=True)]
    return min(errors), max(errors)


def pauses(data: Path, name: str) -> tuple[float, float]:
    """Of a run: the share of requests that a pause held up, and the error of the p99 of TTFT without them."""
    runs = _learned_runs(data)
    training = Training(silicon.without("run", name), ("others",))
    records = [h100_runs.predict(each, training=training) for each in runs]
    (run, record), *_ = (pair for pair in zip(runs, records, strict=True) if pair[0].name == name)
    others = [pair for pair in zip(runs, records, strict=True) if pair[0] is not run]
    front_end = h100_runs.front_end_of([each for each, _ in others], [each for _, each in others])
    late = h100_runs.stragglers(run, record)
    in_time = np.delete(np.arange(len(run.ttft_ms)), late)
    ours_ms = (record.first_token_ns - record.table.arrival_ns) / 1e6
    ours_ms += front_end.ms + front_end.seq_ms * h100_runs.served_together(record)
    p99 = np.percentile(ours_ms[in_time], 99) / np.percentile(run.ttft_ms[in_time], 99)
    return len(late) / len(run.ttft_ms), float(p99 - 1)


@dataclass(frozen=True)
class Assumptions:
    """What would become of errors if something that is not stated were otherwise."""

    held_up: list[tuple[float, float]]
    """Of `PAUSES`, what `pauses` says."""
    same_answers: list[tuple[float, float]]
    """Of `SAME_ANSWERS`."""


def assumptions(data: Path) -> Assumptions:
    return Assumptions(
        [pauses(data, name) for name in PAUSES], [same_answers(data, *case) for case in SAME_ANSWERS]
    )


def missing_terms(figures: Sequence[Figure], otherwise: Assumptions) -> list[str]:
    """Shown on the data."""
    loops = [f for f in figures if f.truth == "closed loops" and f.metric == "TTFT"]

    def median(prices: str, **wanted: object) -> str:
        return f"{np.median([f.error for f in _where(loops, prices=prices, **wanted)]):+.0%}"

    left_out = json.loads((RESULTS / "trained.json").read_text())["without_run"]
    waits = {name.partition("-tp")[0]: c["rank_wait_ns"] / 1e3 for name, c in left_out.items()}
    host_us = [c["host_step_ns"] / 1e3 for c in left_out.values()]
    shipped = json.loads((RESULTS / "h100_runs.json").read_text())[SHIPPED]
    h100 = {"model": "llama-3.1-70b FP8", "gpu": "h100"}
    five = _where(figures, truth="five H100 runs")

    def of(case: str, metric: str, statistic: str) -> str:
        (figure,) = _where(five, case=case, metric=metric, statistic=statistic)
        return f"{figure.error:+.1%}"

    def others(statistic: str) -> str:
        ttft = _where(five, metric="TTFT", statistic=statistic)
        return f"{mean_error(f for f in ttft if f.case != NEAR_SATURATION):.1%}"

    (late_code, p99_left), (late_role, _) = otherwise.held_up
    long_prompts, short_prompts, short_steps = (
        f"{least:+.0%} to {most:+.0%}" for least, most in otherwise.same_answers
    )
    b200 = _where(loops, prices="trained", gpu="b200", tp=4)
    left_ms = {
        length: np.median([f.measured - f.predicted for f in b200 if f"_{length}x" in f.case])
        for length in (1024, 8192)
    }
    text = TERMS.format(
        wait_34b=waits["codellama-34b"],
        wait_70b=waits["llama-2-70b"],
        wait=bundled_training().coefficients.rank_wait_ns / 1e3,
        host_least=min(host_us),
        host_most=max(host_us),
        tpot_70b=of(NEAR_SATURATION, "TPOT", "mean"),
        ttft_70b=of(NEAR_SATURATION, "TTFT", "mean"),
        p99_70b=of(NEAR_SATURATION, "TTFT", "p99"),
        mean_others=others("mean"),
        p99_others=others("p99"),
        late_code=f"{late_code:.1%}",
        late_role=f"{late_role:.1%}",
        p99_code=of(PAUSES[0], "TTFT", "p99"),
        p99_left=f"{p99_left:+.1%}",
        shipped=f"{np.mean([abs(errors['E2E mean']) for errors in shipped.values()]):.1%}",
        h100_trained=median("trained", **h100),
        h100_tables=median("kernel-tables", **h100) if _where(loops, prices="kernel-tables") else "(not run)",
        drawn=median("trained", model="qwen3-32b"),
        long_prompts=long_prompts,
        short_prompts=short_prompts,
        short_steps=short_steps,
        short=left_ms[1024],
        long=left_ms[8192],
    )
    return [textwrap.fill(line, 110, subsequent_indent="  ") for line in text.strip().splitlines()]


def report(figures: Sequence[Figure], otherwise: Assumptions) -> str:
    parts = [
        "# Real engines: predicted against measured",
        "",
        "Made by `python benchmarks/accuracy/real_engines.py ../shared/data --kernel-tables`, which says how",
        "each truth was kept out of what was learned. Every figure stands in real_engines.json.",
        "",
        "Mean of the absolute errors:",
        "",
        *goals(figures),
        "",
        "Runs with every request recorded:",
        "",
        *by_run(figures),
        "",
        "Closed loops (NVIDIA AIConfigurator's silicon samples, Apache-2.0), means of TTFT and TPOT: median",
        "of the absolute errors, in brackets the median with its sign. * The points of this group contradict",
        "each other: with as many requests in flight as they say, computing the prompts of some would take",
        "more than all of the time.",
        "",
        *by_group(figures),
        "",
        "## What is out of reach, and by which term",
        "",
        *missing_terms(figures, otherwise),
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--kernel-tables", action="store_true", help="closed loops by measured kernels too")
    options = parser.parse_args()
    truths: list[Callable[[], list[Figure]]] = [
        lambda: five_runs(options.data),
        lambda: rtx_runs(options.data),
        lambda: closed_loops(options.data, options.kernel_tables),
    ]
    figures = [figure for truth in truths for figure in truth()]
    text = report(figures, assumptions(options.data))
    print(text)
    (RESULTS / "real_engines.md").write_text(text, encoding="utf-8")
    rows = [{key: _plain(value) for key, value in asdict(figure).items()} for figure in figures]
    lines = ",\n".join(json.dumps(row) for row in rows)
    (RESULTS / "real_engines.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _plain(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
