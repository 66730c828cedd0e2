"""The page of accuracy: every measured operating point that is known here, predicted by its own engine.

    python benchmarks/accuracy/page.py ../shared/data [--every 4] [--seconds 240] [--part 1/2]

Writes accuracy.md and accuracy.json in benchmarks/results: coverage with the reasons of refusal, errors by
engine, kind of model and GPU with their tails, and the history from version to version. Predictions are kept
(`predictions.py`): a run that stops after some seconds is continued by the next one, parts may run beside
each other, and the page is written once all are there. Neither file holds a measured figure, only errors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path

from blis_py import native

native.activate()  # ahead of the modules that it replaces

import amd  # noqa: E402
import marginal_prefill  # noqa: E402
from disaggregated_page import put  # noqa: E402
from outcomes import (  # noqa: E402
    Outcome,
    by,
    configuration_of,
    engine_of,
    format_of,
    in_flight,
    learned_label,
    outcome_of,
    sampled,
)
from page_tables import contradictions, coverage, families, goals, left_out, refusals, row_of, table, tails  # noqa: E402
from page_text import ADOPTED, CONTRADICTED, FIRST_WAVE, HEAD, MARGINAL, MISSED  # noqa: E402
from point_sets import points_of  # noqa: E402
from points import Point  # noqa: E402
from predictions import Predictions  # noqa: E402
from train_terms import samples  # noqa: E402

from blis_py.version import __version__  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]


def page(
    of: Sequence[Outcome],
    history: Sequence[dict[str, object]],
    said: str,
    learned_on: Collection[str] = (),
    of_amd: Sequence[Outcome] = (),
) -> str:
    """
    Args:
        learned_on: points that terms were learned on.
        of_amd: points on GPUs by AMD, which the other tables do not count.
    """
    priced = [o for o in of if o.errors]
    sound = [o for o in priced if o.sound]
    sections = {
        "In short": table(
            "points",
            {
                "all": priced,
                "all but those that contradict themselves": [o for o in priced if not o.contradictory],
                "neither contradicting themselves nor another run": sound,
                "of these, points that no term was learned on": [
                    o for o in sound if o.point.id not in learned_on
                ],
            },
        ),
        "Against the goals": [*goals(priced), "", *families(priced)],
        "By engine": table("engine", by(sound, engine_of)),
        "By kind of model": table("model", by(sound, lambda o: f"{o.point.family} {format_of(o)}")),
        "By GPU": table("GPU", by(sound, lambda o: o.point.gpu)),
        "By requests in flight": table("in flight", by(sound, in_flight)),
        "Learned on, or not": table("configuration", by(sound, learned_label)),
        "Adopted after errors were seen": ADOPTED.splitlines(),
        "GPUs by AMD": amd.section(of_amd),
        "Each model family left out": left_out(sound),
        "Tails, where they were measured": tails([o for o in sound if o.point.source != "silicon"]),
        "Marginal prefill": [
            *marginal_prefill.table((o.point, o.errors["ttft.mean"]) for o in sound),
            "",
            *MARGINAL.splitlines(),
        ],
        "What is missed, and why, as far as it is known": MISSED.splitlines(),
        "By configuration": table("configuration", by(sound, configuration_of)),
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
    of_amd = [p for p in amd.amd_points(options.data) if all(word in _label(p) for word in wanted)]
    predictions = Predictions(part)
    missing = predictions.make([*points[part - 1 :: parts], *of_amd[part - 1 :: parts]], options.seconds)
    found = [(point, prediction) for point in points if (prediction := predictions.of(point))]
    beside = [(point, prediction) for point in of_amd if (prediction := predictions.of(point))]
    if len(found) + len(beside) < len(points) + len(of_amd):
        print(f"{len(found)} of {len(points)} points; {missing} of this part are missing: run again")
        return
    said = f" --every {options.every}" if options.every > 1 else ""
    learned_on = {point.id for points in samples(options.data).values() for point in points}
    write(
        [outcome_of(*pair) for pair in found],
        options.out,
        said,
        learned_on,
        [outcome_of(*pair) for pair in beside],
    )


def write(
    outcomes: Sequence[Outcome],
    out: Path | None,
    said: str,
    learned_on: Collection[str] = (),
    of_amd: Sequence[Outcome] = (),
) -> None:
    """Write both files; `learned_on` and `of_amd` as in `page`."""
    json_file = (out or ROOT / "benchmarks" / "results") / "accuracy.json"
    history = json.loads(json_file.read_text())["history"] if json_file.exists() else []
    history = [h for h in history if (h["version"], h["date"]) != (__version__, _today())] + [
        _entry(outcomes)
    ]
    page_file = (out or ROOT / "benchmarks" / "results") / "accuracy.md"
    page_file.write_text(put(page(outcomes, history, said, learned_on, of_amd)), encoding="utf-8")
    figures = ",\n".join(json.dumps(_figures(outcome)) for outcome in outcomes)
    head = f'"version": "{__version__}", "history": {json.dumps(history)}'
    json_file.write_text(f'{{{head}, "points": [\n{figures}\n]}}\n', encoding="utf-8")
    priced = [o for o in outcomes if o.errors]
    print("\n".join(table("engine", {"all": priced, **by(priced, engine_of)})))


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
    return {
        **said,
        "configuration": configuration_of(outcome),
        "version": p.version,
        **marks,
        "errors": errors,
    }


if __name__ == "__main__":
    main()
