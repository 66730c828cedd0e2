"""Figures of `make bench` by version: what `speed.py` keeps, as a table.

    python benchmarks/history.py

`results/history.json` has, for each version, the least CPU time and the memory of every case, and where they
were measured. Only figures of the same machine can be compared, in CPU time per turn of its calibration loop.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blis_py.version import __version__

ROOT = Path(__file__).resolve().parents[1]
NAME = "history.json"
FIGURES = ("cpu_s", "wall_s", "cpu_turns", "peak_rss_mb")
History = dict[str, dict[str, Any]]


def keep(measured: dict[str, dict[str, Any]], folder: Path) -> None:
    """Add the figures of commands under this version, in place of those of the same case."""
    history = read(folder)
    cases = history.setdefault(__version__, {})
    for name, entry in measured.items():
        if all(figure in entry for figure in FIGURES) and not entry["quick"]:
            least = {figure: round(entry[figure]["min"], 3) for figure in FIGURES}
            cases[name] = {**least, "machine": entry["provenance"]}
    (folder / NAME).write_text(json.dumps(history, indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> History:
    file = folder / NAME
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}


def table(history: History) -> str:
    """A row per case, a column per version: CPU s, and millions of calibration turns."""
    versions = list(history)
    names = list(dict.fromkeys(name for cases in history.values() for name in cases))
    rows = [["case, CPU s (10⁶ turns)", *versions], ["---", *["---:"] * len(versions)]]
    for name in names:
        found = [history[version].get(name) for version in versions]
        cells = [f"{one['cpu_s']:.2f} ({one['cpu_turns'] / 1e6:.1f})" if one else "" for one in found]
        rows.append([name, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table(read(ROOT / "benchmarks" / "results")))
