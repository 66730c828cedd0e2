"""How many of thirty questions are answered at the first try, and after how many seconds.

    python benchmarks/questions/first_answers.py [--only TEXT] [--out FILE]

Each command of `questions.yaml` is run as it is typed, plans with `--quick` beside it, which ends with the
first answer. A question that takes a refusal is answered by exit code 2 and a reason, every other one by exit
code 0 and output, a table of refusals aside. Whether an answer is right is not judged here.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

QUESTIONS = Path(__file__).with_name("questions.yaml")
_MOST_S = 300.0
_FIRST_LINES = 3


def questions() -> list[dict[str, Any]]:
    """The questions, in the order of the file."""
    found: list[dict[str, Any]] = yaml.safe_load(QUESTIONS.read_text())["questions"]
    return found


def words_of(question: dict[str, Any]) -> list[str]:
    """The command line, without the program's name."""
    words = shlex.split(question["command"])[1:]
    return [*words, "--quick"] if question["answer"] == "plan" else words


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Outcome of one question: seconds of the clock and of the CPU, exit code, the first lines."""
    style = ["--format", "table", "--no-cache"] if words_of(question)[0] != "run" else ["--format", "table"]
    command = [sys.executable, "-m", "blis_py", *words_of(question), *style]
    before, began = _cpu_s(), time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MOST_S, env={**os.environ})
        code, out, problem = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, out, problem = None, "", "no answer in time"
    refused = question["answer"] == "refusal"
    empty = not out.strip() or (out.lstrip()[:1].isdigit() and " refused: " in out.splitlines()[0])
    lines = [line for line in (problem if refused or code else out).splitlines() if line.strip()]
    return {
        "ask": question["ask"],
        "answered": code == 2 if refused else code == 0 and not empty,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(_cpu_s() - before, 1),
        "exit_code": code,
        "first_lines": lines[:_FIRST_LINES],
    }


def _cpu_s() -> float:
    """CPU seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="questions with this text")
    parser.add_argument("--out", type=Path, help="JSON file of the outcomes")
    given = parser.parse_args()
    outcomes = []
    for question in questions():
        if given.only.lower() in (question["ask"] + question["command"]).lower():
            outcomes.append(answer(question))
            print(json.dumps(outcomes[-1], ensure_ascii=False), flush=True)
    answered = sum(each["answered"] for each in outcomes)
    seconds = statistics.median(each["seconds"] for each in outcomes)
    summary = {"answered": answered, "of": len(outcomes), "median_seconds": seconds}
    print(json.dumps(summary), file=sys.stderr)
    if given.out:
        given.out.write_text(
            json.dumps({**summary, "questions": outcomes}, indent=1, ensure_ascii=False) + "\n"
        )


if __name__ == "__main__":
    main()
