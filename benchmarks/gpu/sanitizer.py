"""compute-sanitizer over tiny runs: out-of-bounds accesses (memcheck) and races in shared memory (racecheck).

    python benchmarks/gpu/sanitizer.py [--tool memcheck|racecheck...] [--seconds N] [--out DIR]

A row for each tool and kind of model, with the number of errors it reported and the first lines of its
output. Where the tool is not there, or cannot use this GPU, the row says so: that is no clean bill. Without a
GPU (`--device cpu`) the runs are made as they are.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from rows import Row
from timing import begin, common_options, end

TOOL = "compute-sanitizer"
FLAGS = {
    "memcheck": ("--tool", "memcheck", "--leak-check", "no"),
    "racecheck": ("--tool", "racecheck", "--racecheck-report", "analysis"),
}
_ALWAYS = ("--print-limit", "20", "--target-processes", "application-only")
_SUMMARY = re.compile(r"ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard")
_HEAD, _SAID = 40, 4000


def run(tool: str, model: str, device: str, seconds: float) -> Row:
    """One run under one tool."""
    script = Path(__file__).with_name("tiny_run.py")
    command = [sys.executable, str(script), "--device", device, "--model", model, "--problems", "2"]
    sanitizer = shutil.which(TOOL) or shutil.which(TOOL, path="/usr/local/cuda/bin")
    if device == "cuda" and sanitizer is None:
        return {"outcome": f"{TOOL} is not there"}
    if device == "cuda":
        command = [str(sanitizer), *FLAGS[tool], *_ALWAYS, *command]
    # Without the allocator's cache, memory outside all tensors is unallocated.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    said, ended = _output(command, environment, seconds)
    found = [int(one or other) for one, other in _SUMMARY.findall(said)]
    lines = [line for line in said.splitlines() if line.startswith("=========")]
    outcome = _outcome(device, ended, found)
    if outcome == "failed":
        raise RuntimeError(said[-_SAID:])
    return {
        "outcome": outcome,
        "errors": sum(found) if found else None,
        "exit_status": ended,
        "said": "\n".join(lines[:_HEAD] or said.splitlines()[-_HEAD:])[:_SAID],
    }


def _outcome(device: str, ended: int | None, found: list[int]) -> str:
    if ended is None:
        return "out of time"
    if device == "cpu":
        return "ran without a sanitizer" if ended == 0 else "failed"
    if not found:
        return "failed"
    return "errors" if any(found) else "no errors"


def _output(command: list[str], environment: dict[str, str], seconds: float) -> tuple[str, int | None]:
    """What it printed, and its exit status; `None` = it was stopped, with all that it started."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
    )
    try:
        return process.communicate(timeout=seconds)[0], process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0], None


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--tool", nargs="+", choices=FLAGS, default=list(FLAGS))
    parser.add_argument("--model", nargs="+", default=["autoregressive", "diffusion"])
    parser.add_argument("--seconds", type=float, default=80, help="for each run")
    options = parser.parse_args()
    rows = begin(options, "sanitizer")
    for tool in options.tool:
        for model in options.model:
            key = f"{tool}, {model}"
            row = rows.once(key, lambda t=tool, m=model: run(t, m, options.device, options.seconds))
            if row is not None:
                print(f"{key}: {row['outcome']} {row.get('errors') or ''}\n{row.get('said', '')}", flush=True)
    end(options, rows)


if __name__ == "__main__":
    main()
