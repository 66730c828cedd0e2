"""What was measured, as markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Entry = Mapping[str, Any]


def commands_table(entries: Mapping[str, Entry]) -> str:
    """One row per whole-process case."""
    header = (
        *("case", "wall s, min / median", "CPU s, min / median", "peak MB", "CPU ÷ calibration, 10⁶ turns"),
        *("calibration ns", "core share", "peer: wall s, MB", "ours ÷ peer: wall, MB", "goal"),
    )
    return _markdown(header, (_command_row(name, entry) for name, entry in entries.items()))


def _command_row(name: str, entry: Entry) -> Sequence[str]:
    wall, cpu, peak_mb = entry["wall_s"], entry["cpu_s"], entry["peak_rss_mb"]
    peer, goal = entry.get("peer"), entry.get("goal")
    published = f"{peer['wall_s']:g}, {peer['rss_mb']:,g}" if peer else ""
    ratio = f"{entry['peer_ratio']['wall']:.2f}, {entry['peer_ratio']['rss']:.2f}" if peer else ""
    memory_goal = f", {goal['rss_mb']:,.0f} MB" if goal and goal["rss_mb"] else ""
    return (
        f"{name}{' (quick)' if entry['quick'] else ''}",
        f"{wall['min']:.2f} / {wall['median']:.2f}",
        f"{cpu['min']:.2f} / {cpu['median']:.2f}",
        f"{peak_mb['median']:,.0f}",
        f"{entry['cpu_turns']['min'] / 1e6:.2f}",
        f"{entry['calibration_ns']['median']:.0f}",
        f"{entry['core_share']['median']:.2f}",
        published,
        ratio,
        f"{goal['wall_s']:.3g} s{memory_goal}" if goal else "",
    )


def outcomes_table(entries: Mapping[str, Entry]) -> str:
    """What the simulations among the cases came to."""
    header = ("case", "requests", "completed", "instances", "busy %", "mean decode batch", "simulated s")
    rows = []
    for name, entry in entries.items():
        if outcome := entry.get("outcome"):
            figures = [f"{outcome[key]:,}" for key in ("requests", "completed", "instances")]
            shares = [f"{outcome[key]:,.1f}" for key in ("busy_pct", "mean_decode_batch", "simulated_s")]
            rows.append((name, *figures, *shares))
    return _markdown(header, rows) if rows else ""


def jump_table(study: Entry) -> str:
    header = (
        *("output tokens", "load", "requests", "mean decode batch", "steps"),
        *("jumping, CPU s", "single steps, CPU s", "ratio", "same result"),
    )
    rows = (
        (
            f"{row['output_tokens']}",
            f"{row['load']:.0%}",
            f"{row['requests']:,}",
            f"{row['mean_decode_batch']:.1f}",
            f"{row['steps']:,}",
            f"{row['jump_cpu_s']:.3f}",
            f"{row['single_step_cpu_s']:.3f}",
            f"{row['ratio']:.1f}",
            "no: " + ", ".join(row["differences"]) if row["differences"] else "yes",
        )
        for row in study["rows"]
    )
    return _markdown(header, rows)


def curves_table(study: Entry) -> str:
    header = ("curve", "requests", "output tokens", "load", "mean decode batch", "CPU µs per request")
    scale = study["calibration_ns"] / 1000
    rows = (
        (
            name,
            f"{point['requests']:,}",
            f"{point['output_tokens']}",
            f"{point['load']:.0%}",
            f"{point['mean_decode_batch']:.1f}",
            f"{point['turns_per_request'] * scale:.1f}",
        )
        for name, curve in study["curves"].items()
        for point in curve
    )
    return _markdown(header, rows)


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
