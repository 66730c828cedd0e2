"""How fast the simulator is: whole processes on one core, as users run them.

    python benchmarks/speed.py [--only CASE...] [--quick] [--repeat N] [--out DIR]

Tables in markdown go to stdout, everything measured to `speed.json` in the output folder, where cases that
were not run this time keep their entries, and the figures of this version to `history.json`.
`benchmarks/README.md` describes how to read the figures.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cases import CASES, Case
from history import keep
from measure import ROOT, ChildFailed, Repetition, pin, run
from provenance import provenance
from tables import commands_table, curves_table, jump_table, outcomes_table

STUDIES = ("jump", "curves")
"""Scripts beside this one that time the simulation alone, each in a process of its own."""

Entry = dict[str, Any]


def main() -> int:
    options = _options()
    core = pin(options.core)
    measured: dict[str, Entry] = {}
    failed = False
    for name in options.only or (*CASES, *STUDIES):
        say(f"{name} …")
        try:
            if name in STUDIES:
                measured[name] = study(name, options.quick, options.repeat, options.out)
            else:
                case = CASES[name](options.quick)
                if missing := case.missing():
                    say(f"skipped {name}: {missing[0]} is not there")
                    continue
                measured[name] = command(case, options.repeat)
        except ChildFailed as error:
            say(f"FAILED {name}: {error}")
            failed = True
            continue
        measured[name] |= {"quick": options.quick, "provenance": provenance(core)}
        failed |= differs(measured[name])
        save(measured, options.out)
        keep(measured, options.out)
    show(measured)
    return int(failed)


def command(case: Case, repeat: int) -> Entry:
    """A case, `repeat` times: the figures, and what the simulation came to."""
    argv = (sys.executable, "-m", "blis_py", *case.arguments)
    repetitions, text = [], ""
    for number in range(repeat):
        repetition, text = run(argv)
        repetitions.append(repetition)
        say(f"  {number + 1}/{repeat}: {_one_line(repetition)}")
    entry: Entry = {
        "what": case.what,
        "command": " ".join(("python", "-m", "blis_py", *case.arguments)),
        "wall_s": _spread(repetitions, lambda r: r.wall_s),
        "cpu_s": _spread(repetitions, lambda r: r.cpu_s),
        "cpu_turns": _spread(repetitions, lambda r: r.cpu_turns),
        "core_share": _spread(repetitions, lambda r: r.cpu_s / r.wall_s),
        "peak_rss_mb": _spread(repetitions, lambda r: r.peak_rss_mb),
        "calibration_ns": _spread(repetitions, lambda r: r.calibration_ns),
        "repetitions": [asdict(repetition) for repetition in repetitions],
    }
    if case.simulates:
        entry["outcome"] = _outcome(json.loads(text))
    if case.goal is not None:
        entry["goal"] = asdict(case.goal)
    if case.peer is not None:
        entry["peer"] = asdict(case.peer)
        entry["peer_ratio"] = {
            "wall": entry["wall_s"]["min"] / case.peer.wall_s,
            "rss": entry["peak_rss_mb"]["median"] / case.peer.rss_mb,
        }
    return entry


def study(name: str, quick: bool, repeat: int, out: Path) -> Entry:
    """One of the scripts beside this one."""
    arguments = [f"benchmarks/{name}.py", "--repeat", str(repeat), *(["--quick"] if quick else [])]
    if name == "curves":
        arguments += ["--picture", str((out / "curves.png").resolve())]
    whole, text = run((sys.executable, *arguments))
    say(f"  {_one_line(whole)}")
    return {"command": f"python benchmarks/{name}.py --repeat {repeat}", **json.loads(text)}


def differs(entry: Entry) -> bool:
    """Whether jumping gave another result than single-stepping, which is an error and no figure."""
    return any(row["differences"] for row in entry.get("rows", ()))


def save(measured: dict[str, Entry], folder: Path) -> None:
    """Puts the entries into `speed.json`, in place of those of the same name."""
    file = folder / "speed.json"
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    every = before | measured
    ordered = {name: every[name] for name in (*CASES, *STUDIES) if name in every}
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ordered, indent=2) + "\n", encoding="utf-8")


def show(measured: dict[str, Entry]) -> None:
    commands = {name: entry for name, entry in measured.items() if name not in STUDIES}
    tables = [commands_table(commands), outcomes_table(commands)] if commands else []
    if "jump" in measured:
        tables.append(jump_table(measured["jump"]))
    if "curves" in measured:
        tables.append(curves_table(measured["curves"]))
    print("\n\n".join(filter(None, tables)))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _spread(repetitions: Sequence[Repetition], figure: Callable[[Repetition], float]) -> dict[str, float]:
    values = [figure(repetition) for repetition in repetitions]
    return {"min": min(values), "median": statistics.median(values)}


def _outcome(summary: dict[str, Any]) -> Entry:
    cluster = summary["cluster"]
    return {
        "requests": cluster["requests"]["injected"],
        "completed": cluster["requests"]["completed"],
        "instances": cluster["num_instances"],
        "busy_pct": cluster["busy_pct"],
        "mean_decode_batch": cluster["mean_decode_batch"],
        "simulated_s": summary["window"]["simulated_s"],
    }


def _one_line(repetition: Repetition) -> str:
    return (
        f"{repetition.wall_s:.2f} s wall, {repetition.cpu_s:.2f} s CPU, {repetition.peak_rss_mb:,.0f} MB, "
        f"calibration {repetition.calibration_ns:.0f} ns, {repetition.cpu_turns / 1e6:.2f}e6 turns"
    )


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    names = (*CASES, *STUDIES)
    parser.add_argument("--only", nargs="+", choices=names, metavar="CASE", help=", ".join(names))
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing"
    )
    parser.add_argument("--repeat", type=_positive, help="repetitions of each case (default 3; quick: 1)")
    parser.add_argument("--core", type=int, help="core to stay on (default: the last one allowed)")
    parser.add_argument("--out", type=Path, help="default benchmarks/results; quick: out/benchmarks")
    options = parser.parse_args()
    options.repeat = options.repeat or (1 if options.quick else 3)
    options.out = options.out or ROOT / ("out/benchmarks" if options.quick else "benchmarks/results")
    return options


if __name__ == "__main__":
    sys.exit(main())
