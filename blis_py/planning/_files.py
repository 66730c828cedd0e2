"""Output files of a plan: the answer, the configuration, server start scripts, the picture."""

from __future__ import annotations

import csv
from pathlib import Path

from blis_py.config.loader import dump
from blis_py.files.cells import harmless
from blis_py.planning import serving
from blis_py.planning.fleet_script import fleet_script
from blis_py.planning.report_data import summary
from blis_py.planning.report_text import answer
from blis_py.planning.result import PlanResult, Standing
from blis_py.result import to_json


def fill(folder: Path, plan: PlanResult, *, plots: bool = True) -> None:
    """Write the plan into an empty folder."""
    texts = {
        "plan.json": to_json(summary(plan)),
        "plan.txt": answer(plan) + "\n",
        "config.yaml": dump(plan.config),
    }
    if plan.best.outcome.facts.get("scheduler"):
        texts |= {
            "vllm.sh": serving.vllm_script(plan.best),
            "sglang.sh": serving.sglang_script(plan.best),
            "trtllm.sh": serving.trtllm_script(plan.best),
            "llm-d-values.yaml": serving.llmd_values(plan.best),
        }
    elif plan.best.outcome.facts.get("schedulers"):
        script = fleet_script(plan.best)
        texts |= {} if script is None else dict([script])
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    if plan.standings:
        _write_standings(folder / "standings.csv", plan.standings)
    if plots:
        from blis_py.planning.pictures import save_pictures

        save_pictures(plan, folder)


def _write_standings(path: Path, standings: tuple[Standing, ...]) -> None:
    names = list(standings[0].point)
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow([*names, "least_instances", "at_most", "fails_at", "cost", "why"])
        for each in standings:
            values = [each.point[name] for name in names]
            cost = None if each.cost is None else round(each.cost, 4)
            cells = [each.least, each.at_most, each.fails_at, cost, each.why]
            rows.writerow([harmless(v) if isinstance(v, str) else v for v in (*values, *cells)])
