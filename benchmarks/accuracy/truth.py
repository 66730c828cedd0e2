"""Whether the program is still as near to every recorded run and page as at the last commit.

    python benchmarks/accuracy/truth.py ../shared/data [--only h100 rtx ...] [--whole] [--accept]

Prints what moved against benchmarks/results/truth.json, and ends with status 1 where a figure is further from
its measurement than its part's noise allows, or beyond its limit. `--accept` writes the new figures, which a
commit with their reason brings in. Without `--whole` the benchmarks are sampled, one fit is made and the
engine's runs are left out; the whole takes hours, and goes on where it was stopped (predicted points and
runs of the engine are kept in `build`). Parts and their noise: `truth_parts.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from blis_py import native

native.activate()  # ahead of the modules that it replaces

from truth_parts import PARTS, Figures, Part  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "results" / "truth.json"
_DIGITS = 5


class Move(NamedTuple):
    """A figure of the last commit and of now; None = there is none."""

    name: str
    before: float | None
    now: float | None
    verdict: str
    """better, worse, same, or new."""


def moves(part: Part, before: Mapping[str, float], now: Mapping[str, float]) -> Iterator[Move]:
    """Every figure of both."""
    for name in {**before, **now}:
        was, is_now = before.get(name), now.get(name)
        yield Move(name, was, is_now, _verdict(part, name, was, is_now))


def _verdict(part: Part, name: str, was: float | None, now: float | None) -> str:
    if now is None or abs(now) > part.limit_of(name):
        return "worse"
    if was is None:
        return "new"
    further = abs(now) - abs(was)
    return "worse" if further > part.noise else "better" if further < -part.noise else "same"


def compare(name: str, data: Path, known: Mapping[str, Figures]) -> tuple[Figures, list[Move]]:
    """The figures of a part now, and how they moved."""
    now = {figure: round(error, _DIGITS) for figure, error in PARTS[name].figures(data).items()}
    return now, list(moves(PARTS[name], known.get(name, {}), now))


def read_known() -> dict[str, Figures]:
    """Figures of the last commit by part."""
    return dict(json.loads(RESULTS.read_text())["figures"]) if RESULTS.exists() else {}


def write(known: Mapping[str, Figures]) -> None:
    noise = {name: PARTS[name].noise for name in PARTS if name in known}
    figures = {name: known[name] for name in PARTS if name in known}
    RESULTS.write_text(json.dumps({"noise": noise, "figures": figures}, indent=1) + "\n", encoding="utf-8")


def line_of(move: Move) -> str:
    before, now = ("-" if error is None else f"{error:+.1%}" for error in (move.before, move.now))
    return f"  {move.verdict:7}{move.name:72}{before:>9} -> {now:>8}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts")
    parser.add_argument("--whole", action="store_true", help="parts that take hours, too")
    parser.add_argument("--accept", action="store_true", help="write the figures of now")
    options = parser.parse_args()
    if not options.data.is_dir():
        parser.error(f"{options.data}: no such folder; give the one with the recorded runs")
    known, worse = read_known(), 0
    for name in options.only or [name for name, part in PARTS.items() if part.fast or options.whole]:
        began_s = time.monotonic()
        now, moved = compare(name, options.data, known)
        counts = dict.fromkeys(("better", "worse", "same", "new"), 0)
        for move in moved:
            counts[move.verdict] += 1
            if move.verdict in ("better", "worse"):
                print(line_of(move))
        summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        print(f"{name}: {summary} ({time.monotonic() - began_s:.0f} s)", flush=True)
        worse += counts["worse"]
        known[name] = now
    if options.accept:
        write(known)
    elif worse:
        sys.exit(f"{worse} figures are worse beyond their noise: mend them, or say why and use --accept")


if __name__ == "__main__":
    main()
