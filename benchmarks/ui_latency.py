"""How soon the page answers: from moving a slider to the redrawn sample, and to the whole run.

    python benchmarks/ui_latency.py [--moves 20] [--out FILE]

Headless Chromium, warm, median of 20 moves: the sample of a run of 10,000 requests (wanted: 300 ms), and the
whole run of 100,000 (wanted: 2 s from when the hand rests). Beside the elapsed time stand the load of the
machine and the CPU time of the server's processes, which other work on the machine changes less.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = {
    "sample of 10,000": ("sample", 10_000, 40, 4),
    "whole of 100,000": ("whole", 100_000, 400, 16),
}
"""Kind, requests, rate and instances."""
_LENGTHS = ("--prompt-tokens", "512", "--output-tokens", "256")
_MOVE = """([steps, kind]) => new Promise((resolve) => {
    const input = document.querySelector('#c-num_instances');
    const { dataset } = document.body;
    const before = dataset.state, began = performance.now();
    const look = () => {
        if (dataset.drawn === kind && dataset.state !== before) {
            requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - began)));
        } else setTimeout(look, 1);
    };
    input.value = Number(input.value) + steps;
    input.dispatchEvent(new Event('input', { bubbles: true }));
    look();
})"""
"""Moves a slider; the time until what follows from it has been painted."""


@contextmanager
def served(requests: int, rate: int, instances: int) -> Iterator[tuple[str, int]]:
    """The page's link and the process of its server."""
    flags = [
        "--rate",
        str(rate),
        "--num-requests",
        str(requests),
        "--num-instances",
        str(instances),
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


def measured(browser: Any, case: str, moves: int) -> dict[str, Any]:
    """Times of one case."""
    kind, requests, rate, instances = CASES[case]
    times, work = [], []
    with served(requests, rate, instances) as (link, pid):
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        page.set_default_timeout(120_000)
        page.goto(link)
        page.wait_for_selector("body[data-drawn=whole]")
        page.wait_for_timeout(5000)
        for move in range(moves):
            before = cpu_s(pid)
            times.append(page.evaluate(_MOVE, [1 if move % 2 else -1, kind]))
            work.append(1e3 * (cpu_s(pid) - before))
            page.wait_for_selector("body[data-drawn=whole]")
        page.close()
    return {
        "case": case,
        "moves": moves,
        "median_ms": statistics.median(times),
        "worst_ms": max(times),
        "median_cpu_ms": statistics.median(work),
        "load": os.getloadavg()[0],
        "cores": os.cpu_count(),
    }


def main() -> None:
    """Print a row per case."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=CASES)
    options = parser.parse_args()
    rows = []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for case in [options.only] if options.only else CASES:
            rows.append(measured(browser, case, options.moves))
            print(
                {
                    key: round(value, 1) if isinstance(value, float) else value
                    for key, value in rows[-1].items()
                }
            )
        browser.close()
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
