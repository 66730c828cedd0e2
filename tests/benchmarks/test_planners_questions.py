"""Thirty questions of planners: each command is one that the program reads."""

from __future__ import annotations

import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from blis_py.cli.flags.parser import parse
from blis_py.cli.verbs import plan, run, sweep

FILE = Path(__file__).parents[2] / "benchmarks/questions/questions.yaml"
QUESTIONS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())["questions"]
GROUPS = {"plan": plan.GROUPS, "run": run.GROUPS, "sweep": sweep.GROUPS}
KINDS = {"plan": {"plan", "max-rate", "pareto", "refusal"}, "run": {"run"}, "sweep": {"sweep", "refusal"}}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["ask"])
def test_a_command_of_a_question_is_read(question: dict[str, Any]) -> None:
    program, verb, *words = shlex.split(question["command"])
    assert program == "blis"
    assert parse(words, GROUPS[verb])
    assert question["answer"] in KINDS[verb]


def test_twenty_of_thirty_questions_are_public() -> None:
    assert len(QUESTIONS) == 30
    assert sum(question.get("source", "").startswith("https://") for question in QUESTIONS) >= 20


def test_an_answer_is_judged_by_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FILE.parent))
    answer = import_module("first_answers")

    given = "blis run --model llama-3.1-8b --num-requests 2"
    good = answer.answer({"ask": "?", "command": given, "answer": "run"})
    assert good["answered"]
    assert good["exit_code"] == 0
    bad = answer.answer({"ask": "?", "command": f"{given} --gpu none-such", "answer": "run"})
    assert not bad["answered"]
    refused = answer.answer({"ask": "?", "command": f"{given} --gpu none-such", "answer": "refusal"})
    assert refused["answered"]
    assert "none-such" in refused["first_lines"][0]
    monkeypatch.delitem(sys.modules, "first_answers")
