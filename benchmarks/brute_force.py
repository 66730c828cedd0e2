"""Plans against brute force: thirteen small spaces, every cheaper combination of settings and sizes run.

    python benchmarks/brute_force.py [--only 0 3] [--out FILE] [--known FILE]

Models, GPUs, targets and kinds of load differ. A space has the numbers of instances, what the plan varies,
and the settings that cost nothing (token budget, sequences, scheduler, router). Brute force runs the
candidates from the cheapest to the most expensive, each at its own length, at sixteen times the length, and
at twenty times the length by which a plan judges, and takes the first that meets all targets; the plan's
answer must cost the same or less. A closed loop is not run at its own length, which its start decides. What
the plan says of its answer, and of its highest rate or the bounds of it, is run again at twenty times the
length by which it judged. Takes many minutes. Whatever was run is kept in `--known` and not run again; a row
goes to `results/brute_force.json` when its case is complete.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from blis_py import native

native.activate()  # as the commands do, before anything of it is imported

import blis_py as blis  # noqa: E402
from blis_py.config.loader import as_dict  # noqa: E402
from blis_py.config.models import RunConfig  # noqa: E402
from blis_py.errors import InputError  # noqa: E402
from blis_py.planning.api import running  # noqa: E402
from blis_py.planning.job import HOPELESS, Job, Variation  # noqa: E402
from blis_py.planning.knobs import values_of  # noqa: E402
from blis_py.planning.plan import Plan  # noqa: E402
from blis_py.planning.steady import MIN_REQUESTS  # noqa: E402
from blis_py.planning.worker import varied  # noqa: E402

RESULTS = Path(__file__).resolve().parent / "results" / "brute_force.json"
PRICES = {"h100": 3.0, "h200": 4.0, "l40s": 1.2, "a100-80": 2.0}
CHAT = {"prompt_tokens": 500, "output_tokens": 100}
LONG = {"prompt_tokens": 3000, "prompt_tokens_max": 12000, "output_tokens": 80}
SPEC, TRACE = "workloads/mixed-slo.yaml", "../shared/data/azure_2023/azure2023_conv.csv"
CLASSES = "critical.ttft.p95=300ms standard.ttft.p95=1s batch.e2e.p95=120s"
CASES: list[dict[str, Any]] = [
    {"model": "llama-3.1-8b", **CHAT, "rate": 20, "slo": "ttft.p99=200ms"},
    {"model": "llama-3.1-8b", **LONG, "rate": 6, "slo": "tpot.p99=40ms"},
    {"model": "qwen3-14b", **CHAT, "rate": 15, "slo": "ttft.p99=300ms tpot.p99=30ms"},
    {"model": "qwen3-14b", **LONG, "rate": 5, "slo": "tpot.p99=60ms"},
    {"model": "qwen3-8b", **CHAT, "rate": 25, "slo": "e2e.p99=8s", "vary": {"gpu": ["h100", "l40s"]}},
    {"model": "llama-3.1-8b", **CHAT, "rate": 20, "slo": "ttft.p99=150ms", "vary": {"tp": [1, 2]}},
    {"model": "qwen3-32b", **CHAT, "rate": 8, "slo": "ttft.p99=400ms", "vary": {"tp": [2, 4]}},
    {"model": "qwen3-30b-a3b", **CHAT, "rate": 20, "slo": "tpot.p99=20ms"},
    {"model": "llama-3.1-8b", **CHAT, "arrival": "gamma", "cv": 3, "rate": 15, "slo": "ttft.p99=300ms"},
    {"model": "qwen3-14b", "workload": "chat", "rate": 15, "slo": "ttft.p95=300ms tpot.p95=40ms"},
    {"model": "qwen3-14b", "workload_spec": SPEC, "rate": 6, "slo": CLASSES},
    {"model": "llama-3.1-8b", "trace": TRACE, "limit": 150, "rate": 25, "slo": "ttft.p95=150ms"},
    {"model": "llama-3.1-8b", **CHAT, "concurrency": 48, "slo": "ttft.p90=60ms"},
]
COUNT = 150
TOLERANCE = 0.08
"""Of the highest rate of a trace: its search ends at 3 %, its extension to longer durations at 5 %."""
AGAIN = 20.0
"""Factor from the requests by which a plan judges to those by which a statement is checked."""


def sizes(case: dict[str, Any]) -> range:
    """Numbers of instances; the classes of the spec need more."""
    return range(1, 9) if "workload_spec" in case else range(1, 7)


class Known:
    """Candidates that were run, in a file with a line for each."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        self._held: dict[str, bool] = dict(map(json.loads, lines))

    def of(self, key: str, run: Callable[[], bool]) -> bool:
        if key not in self._held:
            self._held[key] = run()
            with self._file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, self._held[key]]) + "\n")
        return self._held[key]


def candidates(case: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """Cost and settings of every candidate, the cheapest first."""
    given = {key: value for key, value in case.items() if key != "vary"}
    vary = case.get("vary", {})
    found = []
    for values in itertools.product(*vary.values()):
        point = dict(zip(vary, values, strict=True))
        for size in sizes(case):
            config = blis.build(**counted(given), **point, num_instances=size).config
            knobs = values_of(config)
            for chosen in itertools.product(*([now, *others] for now, others in knobs.values())):
                settings = dict(zip(knobs, chosen, strict=True))
                cost = PRICES[config.gpu] * config.tp * size
                found.append((cost, point | settings | {"num_instances": size}))
    return sorted(found, key=lambda each: each[0])


def counted(case: dict[str, Any]) -> dict[str, Any]:
    """A case with its number of requests; a trace has its own."""
    return case if "trace" in case else case | {"num_requests": COUNT}


def cheapest(case: dict[str, Any], known: Known) -> tuple[float, dict[str, Any]] | None:
    """The cheapest of all candidates, each at sixteen times the length."""
    given = counted({key: value for key, value in case.items() if key != "vary"})
    with running(1, None, False) as runner:
        for cost, settings in candidates(case):
            key = json.dumps([given, settings])
            if known.of(key, lambda settings=settings: _holds(runner, given | settings)):
                return cost, settings
    return None


def _holds(runner: Any, settings: dict[str, Any]) -> bool:
    """Whether a configuration meets its targets for the workload, and at longer lengths."""
    try:
        config = replace(blis.build(**settings).config, drain=True)
    except InputError:
        return False
    again = AGAIN if "trace" in settings else AGAIN * MIN_REQUESTS / COUNT
    for length in (16.0, again) if "concurrency" in settings else (1.0, 16.0, again):
        (outcome,) = runner.run([Job(config, Variation(length=length), stops_at=(HOPELESS,))])
        if outcome.early_stop or not outcome.ran or not all(each["met"] for each in outcome.slo):
            return False
    return outcome.verdict != "saturated"


def row(number: int, known: Known) -> dict[str, Any]:
    case = CASES[number]
    plan = blis.plan(
        **counted(case),
        instances=list(sizes(case)),
        prices=PRICES,
        draws=0,
        workers=1,
    )
    best = cheapest(case, known)
    return {
        "case": case,
        "plan": str(plan.best) if plan.holds else None,
        "plan_cost": plan.best.dollars_per_hour if plan.holds else None,
        "brute_force": None if best is None else best[1],
        "brute_force_cost": None if best is None else best[0],
        "same_or_cheaper": best is None or (plan.holds and plan.best.dollars_per_hour <= best[0] + 1e-9),
        "highest_rate": None if plan.rate is None else plan.rate.factor,
        "bounds": None if plan.rate is None or plan.rate.bounds is None else plan.rate.bounds[:2],
        "called_a_burst": plan.rate is not None and plan.rate.bounds is None and not plan.rate.settled,
        "on_the_edge": plan.sustained is not None and plan.sustained.on_edge,
        "untrue": untrue(plan, known),
        "runs_of_the_plan": plan.simulated + plan.known,
    }


def untrue(plan: Plan, known: Known) -> list[str]:
    """Statements of a plan that do not hold at twenty times the length."""

    def meets(rate: float) -> bool:
        key = json.dumps([as_dict(replace(plan.config, given=None)), rate])
        return known.of(key, lambda: _meets(plan.config, rate))

    found = []
    on_edge = plan.sustained is not None and plan.sustained.on_edge
    if not on_edge and plan.holds != meets(1.0):
        found.append("meets all targets" if plan.holds else "meets them not")
    rate = plan.rate
    if rate is None or rate.factor is None:
        return found
    least, most = (
        rate.bounds[:2] if rate.bounds else (rate.factor * (1 - TOLERANCE), rate.factor * (1 + TOLERANCE))
    )
    if (rate.bounds or rate.settled) and least is not None and not meets(least):
        found.append(f"holds {least:.2f} times the rate")
    if rate.broken is not None and most is not None and meets(most):
        found.append(f"does not hold {most:.2f} times the rate")
    return found


def _meets(config: RunConfig, rate: float) -> bool:
    """Whether a configuration meets all targets at a multiple of the rate, at twenty times the length."""
    at = Variation(rate=rate, length=AGAIN * max(rate, 1.0))
    summary = varied(Job(config, at)).run(record_steps=False).summary
    return all(each["met"] for each in summary["slo"]) and summary["load"]["verdict"] != "saturated"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", type=int, default=[*range(len(CASES))])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--known", type=Path, default=RESULTS.with_name("brute_force.runs"))
    given = parser.parse_args()
    known = Known(given.known)
    for number in given.only:
        made = row(number, known)
        print(json.dumps(made), flush=True)
        before = json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else []
        rows = [each for each in before if each["case"] != made["case"]] + [made]
        rows.sort(key=lambda each: CASES.index(each["case"]))
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
