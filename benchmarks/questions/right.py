"""Whether the plans of the thirty questions are right, by simulation of their neighbours.

    python benchmarks/questions/right.py [--only TEXT] [--out FILE]

Of a question that takes a configuration, what the whole search finds is run for as many requests as it was
judged by, at least sixteen times those given, and so are one instance fewer, with up to 40 combinations of
the settings that cost nothing (token budget, sequences, scheduler, router), and of every other layout
searched the most instances that cost less. The answer is right if it meets all targets and none of the
others does. Of one that takes a highest rate, the answer must meet them at 95 % of that rate, and it and
every other layout must miss one at 108 %. `first` is what `--quick` answers. A row goes to
`results/questions_right.json` when its question is done.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from first_answers import questions, words_of

from blis_py import native

native.activate()  # as the commands do, before anything of it is imported

from blis_py.cli.flags.parser import parse  # noqa: E402
from blis_py.cli.verbs.plan import GROUPS, found, study_of_plan  # noqa: E402
from blis_py.config.models import RunConfig  # noqa: E402
from blis_py.errors import InputError  # noqa: E402
from blis_py.planning.api import running, spanned  # noqa: E402
from blis_py.planning.axes import axis, grid  # noqa: E402
from blis_py.planning.fleets import gpus_of, price_of  # noqa: E402
from blis_py.planning.goal import Goal  # noqa: E402
from blis_py.planning.job import HOPELESS, Job, Variation  # noqa: E402
from blis_py.planning.knobs import values_of  # noqa: E402
from blis_py.planning.plan import Plan  # noqa: E402
from blis_py.planning.prices import Prices  # noqa: E402
from blis_py.planning.study import Study  # noqa: E402
from blis_py.planning.widths import sensible, unasked  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "results" / "questions_right.json"
KINDS = ("plan", "max-rate")
LENGTH, BELOW, ABOVE = 16.0, 0.95, 1.08
MOST_SETTINGS = 40
"""Combinations of the settings that cost nothing that are tried with one instance fewer, spread evenly."""


def row(question: dict[str, Any]) -> dict[str, Any]:
    """The answer of a question, and the candidates that contradict it."""
    words = words_of(question)
    flags = parse([*words[1:], "--no-cache", "--workers", "1"], GROUPS)
    first = found(flags) if question["answer"] == "plan" else None
    flags.pop("--quick", None)
    plan = found({**flags, "--draws": 0})
    check = _rate_contradicted if question["answer"] == "max-rate" else _plan_contradicted
    with running(1, None, False) as runner:
        checked = dict(check(plan, flags, runner))
    wrong = [what for what, contradicts in checked.items() if contradicts]
    return {
        "ask": question["ask"],
        "first": None if first is None else str(first.best),
        "answer": str(plan.best),
        "dollars_per_hour": plan.best.dollars_per_hour,
        "highest_rate_per_s": plan.max_rate_per_s if question["answer"] == "max-rate" else None,
        "checked": len(checked),
        "right": plan.holds and not wrong,
        "wrong": wrong,
    }


def _plan_contradicted(plan: Plan, flags: dict[str, Any], runner: Any) -> Iterator[tuple[str, bool]]:
    """The candidates, and whether each contradicts the plan."""
    best, length = plan.best, _length(plan)
    yield f"{best} misses", not _meets(best.config, runner, length)
    cost = best.dollars_per_hour or float(best.gpus)
    if best.instances > 1:
        fewer = replace(best.config, num_instances=best.instances - 1)
        for settings, config in _settings(fewer):
            yield f"{best.instances - 1} instances meet {settings}", _meets(config, runner, length)
    for point, config in _layouts(flags):
        one = _cost(replace(config, num_instances=1))
        number = min(int((cost - 1e-6) / one), 32)
        if number and {key: best.point.get(key) for key in point} != point:
            cheaper = replace(config, num_instances=number)
            yield f"{number} instances of {point} meet", _meets(cheaper, runner, length)


def _rate_contradicted(plan: Plan, flags: dict[str, Any], runner: Any) -> Iterator[tuple[str, bool]]:
    best, rate = plan.best.config, plan.max_rate_factor
    if rate is None or plan.max_rate_per_s is None:
        yield "no highest rate", True
        return
    yield f"misses at {BELOW:g} of the rate", not _meets(best, runner, LENGTH, BELOW * rate)
    yield f"meets at {ABOVE:g} of the rate", _meets(best, runner, LENGTH, ABOVE * rate)
    for each in plan.rated[1:]:
        yield f"{each.candidate} meets at it", _meets(each.candidate.config, runner, LENGTH, ABOVE * rate)


def _length(plan: Plan) -> float:
    """Factor on the requests given: that of the longest run by which the plan judged, at least sixteen."""
    return LENGTH if plan.sustained is None else max(LENGTH, plan.sustained.length)


def _layouts(flags: dict[str, Any]) -> Iterator[tuple[dict[str, Any], RunConfig]]:
    """Every combination of what a plan varies that can be run, whether it is given or not."""
    study = study_of_plan(flags)
    axes = spanned(flags.get("--vary", ()), (), flags.get("--space"))[0]
    widths = unasked(study, axes)
    every = [*axes, *widths]
    for point in sensible(grid(every)) if widths else grid(every):
        try:
            yield point, study.config({**point, "num_instances": 1}, [*every, axis("num_instances", [1])])
        except InputError:
            continue


def _settings(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """A configuration as it is, and with combinations of the settings that cost nothing."""
    knobs = values_of(config)
    combined = list(itertools.product(*([now, *others] for now, others in knobs.values())))
    for chosen in combined[:: max(1, -(-len(combined) // MOST_SETTINGS))]:
        settings = dict(zip(knobs, chosen, strict=True))
        axes = [axis(name, [value]) for name, value in settings.items()]
        try:
            yield json.dumps(settings), Study(start=config).config(settings, axes)
        except InputError:
            continue


def _cost(config: RunConfig) -> float:
    price = price_of(config, Prices())
    return gpus_of(config) * (1.0 if price is None else price.per_hour)


def _meets(config: RunConfig, runner: Any, length: float, rate: float = 1.0) -> bool:
    """Whether all targets are met over the longer run, and the backlog does not grow."""
    at = Variation(rate=rate, length=length * max(rate, 1.0))
    (outcome,) = runner.run([Job(replace(config, drain=True), at, stops_at=(HOPELESS,))])
    return bool(outcome.ran and Goal(unlimited=True).judge(outcome).holds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="questions with this text")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    order = [each["ask"] for each in questions()]
    for question in questions():
        text = question["ask"] + question["command"]
        if question["answer"] in KINDS and given.only.lower() in text.lower():
            made = row(question)
            print(json.dumps(made, ensure_ascii=False), flush=True)
            before = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else []
            rows = [each for each in before if each["ask"] != made["ask"]] + [made]
            rows.sort(key=lambda each: order.index(each["ask"]))
            given.out.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
