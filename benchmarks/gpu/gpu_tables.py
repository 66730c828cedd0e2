"""Tables of what campaigns measured, as Markdown. Where nothing was measured, they say so.

python benchmarks/gpu/gpu_tables.py DIR...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rows import Row, read_rows

NOTHING = "Not measured yet."
_FACTS = (
    "gpu",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "power.limit",
    "cuda",
    "torch",
    "triton",
    "revision",
)


@dataclass
class Results:
    """Rows by script and key, and the provenance of each run."""

    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def of(self, script: str) -> list[Row]:
        """The rows of a script that were measured, in the order in which they were first tried."""
        return [row for row in self.rows.get(script, {}).values() if "error" not in row]

    def add(self, row: Row) -> None:
        """A row that counts instead of that of its key, unless it is no row of a figure and that one is."""
        mine = self.rows.setdefault(row["script"], {})
        if "error" not in row or "error" in mine.get(row["key"], {"error": ""}):
            mine[row["key"]] = row

    def only(self, scripts: set[str]) -> Results:
        """Without the rows of others."""
        return Results({name: rows for name, rows in self.rows.items() if name in scripts}, self.runs)

    def failures(self) -> list[Row]:
        """What could not be measured."""
        return [row for rows in self.rows.values() for row in rows.values() if "error" in row]

    @property
    def rehearsed(self) -> bool:
        """Whether any of it was run on a CPU."""
        return any(report.get("gpu") == "cpu" for report in self.runs.values())


def gathered(folders: Iterable[Path]) -> Results:
    """The rows of all folders; of a key the latest that was measured, if any was."""
    found = Results()
    for row in (row for folder in folders for row in read_rows(folder)):
        if "provenance" in row:
            found.runs[row["run"]] = row["provenance"]
        elif "key" in row:
            found.add(row)
    return found


def by_gpu(folders: Iterable[Path]) -> dict[str, Results]:
    """The same for each GPU by itself, by its name."""
    found: dict[str, Results] = {}
    gpu_of: dict[str, str] = {}
    for row in (row for folder in folders for row in read_rows(folder)):
        if "provenance" in row:
            gpu_of[row["run"]] = gpu = row["provenance"]["gpu"]
            found.setdefault(gpu, Results()).runs[row["run"]] = row["provenance"]
        elif "key" in row:
            found[gpu_of[row["run"]]].add(row)
    return found


def draw(results: Results, only_measured: bool = False) -> str:
    """All tables; without those of which nothing was measured, if that is wanted."""
    parts = [_where(results)]
    for title, of in TABLES.items():
        table = of(results)
        if table or not only_measured:
            parts.append(f"## {title}\n\n{table or NOTHING}")
    failures = [[row["script"], row["key"], _line(row["error"])] for row in results.failures()]
    if failures:
        parts.append("## Could not be measured\n\n" + table_of(("script", "row", "why"), failures))
    return "\n\n".join(parts) + "\n"


def table_of(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; "" without rows. Cells are numbers to three digits, or texts."""
    lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join(("| " + " | ".join(header) + " |", "|" + "---|" * len(header), *lines))


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _line(text: str) -> str:
    return text.replace("|", "/").splitlines()[0][:200] if text else ""


def _where(results: Results) -> str:
    notes = [
        " · ".join(f"{name} {run[name]}" for name in _FACTS if run.get(name)) for run in results.runs.values()
    ]
    lines = [f"- {line}" for line in dict.fromkeys(line for line in notes if "torch" in line)]
    if results.rehearsed:
        lines.insert(0, "**Rehearsed on a CPU: these are no figures of a GPU.**\n")
    return "\n".join(lines or ["Nothing has been measured on a GPU yet."])


Columns = Mapping[str, str | Callable[[Row], Any]]
"""Titles, and under which key of a row the cell stands, or what it is made of."""


def _table(rows: Iterable[Row], columns: Columns) -> str:
    return table_of(
        tuple(columns),
        ([row[of] if isinstance(of, str) else of(row) for of in columns.values()] for row in rows),
    )


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.0%}"


def _bandwidth(results: Results) -> str:
    rows = [
        (row["key"], f"{row['gigabytes_per_s']:,.0f} GB/s" if "gigabytes_per_s" in row else
         f"{row['teraflops']:,.0f} TFLOP/s")
        for row in results.of("bandwidth")
    ]  # fmt: skip
    return table_of(("what", "measured"), rows)


def _machine(results: Results) -> str:
    rows = []
    for row in results.of("probe"):
        for name, value in row.items():
            if name not in ("script", "run", "key", "tools"):
                rows.append((row["key"], name, ", ".join(value) if isinstance(value, list) else value))
    return table_of(("probe", "what", "value"), rows)


def _tests(results: Results) -> str:
    rows = [
        (row["key"], row.get("passed", 0), row.get("failed", 0), row.get("skipped", 0), row["seconds"])
        for row in results.of("gpu_tests")
        if "exit_status" in row
    ]
    return table_of(("file", "passed", "failed", "skipped", "s"), rows)


def _attention(results: Results) -> str:
    columns: Columns = {
        "case": "key",
        "µs": "median_us",
        "floor µs": "floor_us",
        "of the floor": lambda row: _percent(row["floor_us"] / row["median_us"]),
        "TFLOP/s": "teraflops",
        "torch SDPA µs": "torch_median_us",
    }
    return _table((row for row in results.of("attention") if "floor_us" in row), columns)


def _sweep(results: Results) -> str:
    cases: dict[str, list[Row]] = {}
    for row in results.of("attention"):
        if "num_stages" in row:
            cases.setdefault(row["case"], []).append(row)
    rows = []
    for case, tried in cases.items():
        best = min(tried, key=lambda row: row["median_us"])
        built_in = next((row["median_us"] for row in tried if row["built_in"]), None)
        setting = " / ".join(str(best[name]) for name in ("programs_per_sm", "num_warps", "num_stages"))
        rows.append((case, len(tried), built_in, best["median_us"], setting))
    return table_of(("case", "settings tried", "built in µs", "best µs", "programs / warps / stages"), rows)


def _ops(results: Results) -> str:
    columns: Columns = {
        "op": "op",
        "shape": "shape",
        "µs": "median_us",
        "floor µs": "floor_us",
        "of the floor": lambda row: _percent(row["fraction_of_floor"]),
    }
    return _table(results.of("ops"), columns)


def _decode(results: Results) -> str:
    columns: Columns = {
        "model": "model",
        "batch": "batch",
        "context": "context",
        "regime": "regime",
        "GPU ms": "gpu_ms",
        "floor ms": "floor_ms",
        "times the floor": "over_floor",
        "host ms": "host_ms",
        "launch-bound": lambda row: _percent(row["launch_bound_share"]),
    }
    return _table(results.of("decode_steps"), columns)


def _profiles(results: Results) -> str:
    columns: Columns = {
        "model": "model",
        "longest": "max_model_len",
        "shapes": lambda row: row["counts"]["shapes"],
        "rounds": "rounds",
        "visits of the next": "visits",
        "steps": lambda row: row["counts"]["steps"],
        "drift": lambda row: f"{row['drift']:.1%}",
        "launch-bound": "launch_bound",
        "s": "seconds",
    }
    return _table(results.of("profiles"), columns)


def _diffusion(results: Results) -> str:
    measured = results.of("diffusion")
    rounds: Columns = {
        "slots": "slots",
        "mode": "mode",
        "regime": "regime",
        "rounds": "rounds",
        "round GPU ms": "round_gpu_ms",
        "floor ms": "floor_ms",
        "times the floor": "over_floor",
        "output tokens/s": "output_tokens_per_s",
        "GPU share": lambda row: _percent(row["gpu_share"]),
    }
    kernels: Columns = {"blocks": "blocks", "step kernel": "kernel", "µs": "median_us", "GB/s": "gb_per_s"}
    tables = (
        _table((row for row in measured if "slots" in row), rounds),
        _table((row for row in measured if "kernel" in row), kernels),
    )
    return "\n\n".join(filter(None, tables))


def _throughput(results: Results) -> str:
    engine = {
        row["model"]: row["output_tokens_per_s"]
        for row in results.of("throughput")
        if row["system"] == "engine"
    }
    rows = [
        (
            row["model"],
            row["system"],
            row["elapsed_s"],
            row["output_tokens_per_s"],
            engine[row["model"]] / row["output_tokens_per_s"]
            if row["model"] in engine and row["output_tokens_per_s"]
            else None,
        )
        for row in results.of("throughput")
    ]
    return table_of(("model", "system", "s", "output tokens/s", "the engine is … times as fast"), rows)


def _overlap(results: Results) -> str:
    rows = [
        (
            row["model"],
            row["batch"],
            loop,
            row[loop]["output_tokens_per_s"],
            row[loop]["step_period_us"],
            _percent(row[loop]["bubble"]),
            row[loop]["launch_lead_us"],
            _percent(row[loop]["run_ahead"]),
            "yes" if row["same_tokens"] else "NO",
        )
        for row in results.of("overlap")
        for loop in ("synchronous", "overlapped")
    ]
    titles = ("model", "batch", "loop", "output tokens/s", "step µs", "bubble", "launch lead µs", "run ahead")
    return table_of((*titles, "same tokens"), rows)


def _kernels(results: Results) -> str:
    rows = [
        (row["key"], kernel["kernel"].replace("|", "/"), kernel["calls"], kernel["us"],
         _percent(kernel["us"] / row["total_us"]))
        for row in results.of("kernel_profile")
        for kernel in row["kernels"][:12]
    ]  # fmt: skip
    return table_of(("step", "kernel", "calls", "µs", "share"), rows)


def _sanitizer(results: Results) -> str:
    rows = [(row["key"], row["outcome"], row.get("errors")) for row in results.of("sanitizer")]
    return table_of(("tool, model", "outcome", "errors"), rows)


def _parts(results: Results) -> str:
    rows = [
        (row["job"], row["key"], row["state"], row["seconds"])
        for row in results.rows.get("campaign", {}).values()
    ]
    return table_of(("job", "part", "state", "s"), rows)


TABLES: dict[str, Callable[[Results], str]] = {
    "Parts of the campaign": _parts,
    "Machine": _machine,
    "Bandwidth": _bandwidth,
    "Tests on the GPU": _tests,
    "Attention": _attention,
    "Attention under other launch settings": _sweep,
    "Other kernels": _ops,
    "Decode steps": _decode,
    "Profiles": _profiles,
    "Block diffusion": _diffusion,
    "Synchronous and overlapped": _overlap,
    "Throughput": _throughput,
    "Where the time goes": _kernels,
    "compute-sanitizer": _sanitizer,
}
"""Title -> what draws it; "" where nothing was measured."""


def main() -> None:
    print(draw(gathered(map(Path, sys.argv[1:]))), end="")


if __name__ == "__main__":
    main()
