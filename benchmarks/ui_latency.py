"""How soon the page answers: from moving a slider to the redrawn sample, and to the whole run.

    python benchmarks/ui_latency.py [--only CASE] [--moves 20] [--out FILE]

Headless Chromium, warm, median of 20 moves: the sample of a run of 10,000 requests (wanted: 300 ms), and the
whole run of 100,000 (wanted: 2 s), both from the moment the slider moves; and a slider dragged over 20 values
in a second. While the page waits, every frame is timed: the share within one and a half intervals of a
display at 60 Hz, and the longest gap. Beside the elapsed time stand the load of the machine and the CPU time
of the server's processes, which other work on the machine changes less. With `--out`, moves are added to
those in the file, so that a measurement can be made in parts; `--results` keeps the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """A run, and what is waited for.

    Attributes:
        kind: of the answer that ends a move.
        values: of the slider in one move, at 20 a second.
    """

    kind: str
    requests: int
    rate: int
    instances: int
    values: int = 1


CASES = {
    "sample of 10,000": Case("sample", 10_000, 40, 4),
    "whole of 100,000": Case("whole", 100_000, 400, 16),
    "drag at 10,000": Case("whole", 10_000, 40, 4, values=20),
    "drag at 100,000": Case("whole", 100_000, 400, 16, values=20),
}
_LENGTHS = ("--prompt-tokens", "512", "--output-tokens", "256")
_INTERVAL_MS = 1000 / 60
_WARM = 2
"""Moves before those that are measured."""
_MOVE = """([steps, kind, values]) => new Promise((resolve) => {
    const input = document.querySelector('#c-num_instances');
    const { dataset } = document.body;
    const gaps = [];
    let before = dataset.state, frame = null, ended = null, began = performance.now();
    const tick = (now) => {
        if (frame !== null) gaps.push(now - frame);
        frame = now;
        if (ended === null) requestAnimationFrame(tick);
        else resolve({ ms: ended - began, gaps });
    };
    requestAnimationFrame(tick);
    const look = () => {
        if (dataset.drawn === kind && dataset.state !== before) {
            requestAnimationFrame(() => setTimeout(() => (ended = performance.now())));
        } else setTimeout(look, 1);
    };
    const move = (left) => {
        began = performance.now();
        before = dataset.state;
        input.value = Number(input.value) + steps;
        input.dispatchEvent(new Event('input', { bubbles: true }));
        if (left > 1) setTimeout(move, 50, left - 1);
        else look();
    };
    move(values);
})"""
"""Moves a slider over a number of values; the time from the last until what follows from it has been painted,
and the gaps between all frames."""


@contextmanager
def served(case: Case) -> Iterator[tuple[str, int]]:
    """The page's link and the process of its server."""
    flags = [
        "--rate",
        str(case.rate),
        "--num-requests",
        str(case.requests),
        "--num-instances",
        str(case.instances),
        *_LENGTHS,
    ]
    command = [sys.executable, "-m", "blis_py", "ui", "--no-browser", "--model", "llama-3.1-8b", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process.pid
        process.terminate()


def cpu_s(pid: int) -> float:
    """CPU time of a process and its children so far, in s."""
    own = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(own[11]) + int(own[12])) / os.sysconf("SC_CLK_TCK") + sum(
        cpu_s(int(child)) for child in children
    )


def measured(browser: Any, case: Case, moves: int) -> list[dict[str, Any]]:
    """Moves of one case: elapsed time, CPU time and the gaps between frames."""
    found = []
    with served(case) as (link, pid):
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(link)
        page.wait_for_selector("body[data-drawn=whole]")
        page.wait_for_timeout(3000)
        for move in range(moves + _WARM):
            before = cpu_s(pid)
            one = page.evaluate(_MOVE, [1, case.kind, case.values])  # never back: results are kept
            if move >= _WARM:
                found.append(
                    {
                        **one,
                        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
                        "cpu_ms": 1e3 * (cpu_s(pid) - before),
                        "load": os.getloadavg()[0],
                    }
                )
            page.wait_for_selector("body[data-drawn=whole]")
        page.close()
    return found


def row(case: str, moves: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of all moves of a case."""
    times = [one["ms"] for one in moves]
    gaps = [gap for one in moves for gap in one["gaps"]]
    return {
        "case": case,
        "moves": len(moves),
        "median_ms": statistics.median(times),
        "worst_ms": max(times),
        "median_cpu_ms": statistics.median(one["cpu_ms"] for one in moves),
        "frames": len(gaps),
        "on_time_pct": 100 * sum(gap < 1.5 * _INTERVAL_MS for gap in gaps) / len(gaps),
        "longest_gap_ms": max(gaps),
        "median_longest_gap_ms": statistics.median(max(one["gaps"]) for one in moves),
        "load": statistics.median(one["load"] for one in moves),
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Print a row per case."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out and options.out.exists() else {"moves": {}}
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name in [options.only] if options.only else CASES:
            known["moves"].setdefault(name, []).extend(measured(browser, CASES[name], options.moves))
            print({key: rounded(value) for key, value in row(name, known["moves"][name]).items()})
        browser.close()
    if options.out:
        options.out.write_text(json.dumps(rounded(known)) + "\n")
    if options.results:
        rows = [rounded(row(name, moves)) for name, moves in known["moves"].items()]
        options.results.write_text(json.dumps(rows, indent=1) + "\n")


def rounded(value: Any) -> Any:
    """Fractions to one decimal."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 1) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
