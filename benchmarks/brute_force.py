"""Plans against brute force: ten small spaces, every combination of settings and sizes run by itself.

    python benchmarks/brute_force.py [--only 0 3] [--out FILE]

Models, GPUs, targets and kinds of load differ. A space has the numbers of instances, what the plan varies,
and the settings that cost nothing (token budget, sequences, scheduler, router). Brute force runs each
candidate at sixteen times the length and takes the cheapest that meets all targets; the plan's answer must
cost the same or less, and hold at twenty times the length. Takes many minutes; writes
`results/brute_force.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import blis_py as blis
from blis_py.errors import InputError
from blis_py.planning.api import running
from blis_py.planning.job import HOPELESS, Job, Variation
from blis_py.planning.knobs import values_of
from blis_py.planning.worker import varied

RESULTS = Path(__file__).resolve().parent / "results" / "brute_force.json"
PRICES = {"h100": 3.0, "h200": 4.0, "l40s": 1.2, "a100-80": 2.0}
CHAT = {"prompt_tokens": 500, "output_tokens": 100}
LONG = {"prompt_tokens": 3000, "prompt_tokens_max": 12000, "output_tokens": 80}
CASES: list[dict[str, Any]] = [
    {"model": "llama-3.1-8b", **CHAT, "rate": 20, "slo": "ttft.p99=200ms"},
    {"model": "llama-3.1-8b", **LONG, "rate": 6, "slo": "tpot.p99=40ms"},
    {"model": "qwen3-14b", **CHAT, "rate": 15, "slo": "ttft.p99=300ms tpot.p99=30ms"},
    {"model": "qwen3-14b", **LONG, "rate": 5, "slo": "tpot.p99=60ms"},
    {"model": "qwen3-8b", **CHAT, "rate": 25, "slo": "e2e.p99=3s", "vary": {"gpu": ["h100", "l40s"]}},
    {"model": "llama-3.1-8b", **CHAT, "rate": 20, "slo": "ttft.p99=150ms", "vary": {"tp": [1, 2]}},
    {"model": "qwen3-32b", **CHAT, "rate": 8, "slo": "ttft.p99=400ms", "vary": {"tp": [2, 4]}},
    {"model": "qwen3-30b-a3b", **CHAT, "rate": 20, "slo": "tpot.p99=20ms"},
    {"model": "llama-3.1-8b", **CHAT, "arrival": "gamma", "cv": 3, "rate": 15, "slo": "ttft.p99=300ms"},
    {"model": "qwen3-14b", "workload": "chat", "rate": 15, "slo": "ttft.p95=300ms tpot.p95=40ms"},
]
COUNT, SIZES = 150, range(1, 7)


def cheapest(case: dict[str, Any]) -> tuple[float, dict[str, Any]] | None:
    """The cheapest of all candidates, each at sixteen times the length."""
    given = {key: value for key, value in case.items() if key != "vary"}
    vary = case.get("vary", {})
    found = []
    with running(1, None, False) as runner:
        for values in itertools.product(*vary.values()):
            point = dict(zip(vary, values, strict=True))
            for size in SIZES:
                config = blis.build(**given, **point, num_requests=COUNT, num_instances=size).config
                knobs = values_of(config)
                for chosen in itertools.product(*([now, *others] for now, others in knobs.values())):
                    settings = dict(zip(knobs, chosen, strict=True))
                    cost = PRICES[config.gpu] * config.tp * size
                    if found and cost >= found[0][0]:
                        continue
                    try:
                        config = blis.build(
                            **given, **point, **settings, num_requests=COUNT, num_instances=size
                        ).config
                    except InputError:
                        continue
                    if holds(runner, config):
                        found = [(cost, point | settings | {"num_instances": size})]
    return found[0] if found else None


def holds(runner: Any, config: Any) -> bool:
    """Whether a configuration meets its targets for the workload, and at sixteen times its length."""
    for length in (1.0, 16.0):
        (outcome,) = runner.run([Job(config, Variation(length=length), stops_at=(HOPELESS,))])
        if outcome.early or not outcome.ran or not all(each["met"] for each in outcome.slo):
            return False
    return outcome.verdict != "saturated"


def row(number: int) -> dict[str, Any]:
    case = CASES[number]
    plan = blis.plan(
        **case,
        num_requests=COUNT,
        instances=list(SIZES),
        prices=PRICES,
        draws=0,
        cache=False,
    )
    best = cheapest(case)
    long = varied(Job(plan.config, Variation(length=20.0))).run(record_steps=False).summary
    return {
        "case": case,
        "plan": str(plan.best) if plan.holds else None,
        "plan_cost": plan.best.dollars_per_hour if plan.holds else None,
        "brute_force": None if best is None else best[1],
        "brute_force_cost": None if best is None else best[0],
        "same_or_cheaper": best is None or (plan.holds and plan.best.dollars_per_hour <= best[0] + 1e-9),
        "holds_at_twenty": plan.holds and all(each["met"] for each in long["slo"]),
        "runs_of_the_plan": plan.simulated,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", type=int, default=range(len(CASES)))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = []
    for number in given.only:
        rows.append(row(number))
        print(json.dumps(rows[-1]), flush=True)
    given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
