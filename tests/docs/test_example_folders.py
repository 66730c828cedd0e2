"""Each folder of `examples` is a question, its data, one command and the answer, and the command gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from examples import QUESTIONS, ROOT, Runner, examples, matches

IDS = [page.parent.name for page in QUESTIONS]


def test_there_are_ten_and_all_are_in_the_index() -> None:
    index = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"^- \[(.*)\]\((.*)\)$", index, re.MULTILINE)
    questions = {
        f"{page.parent.name}/README.md": page.read_text("utf-8").splitlines()[0] for page in QUESTIONS
    }
    assert len(questions) == 10
    assert {path: f"# {question}" for question, path in linked} == questions


@pytest.mark.parametrize("page", QUESTIONS, ids=IDS)
def test_a_question_has_one_command_and_its_answer_is_in_the_output(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.match(r"# .*\?\n", text)
    (command,) = examples(text)
    assert command.shown is not None
    (answer,) = re.findall(r"^\*\*Answer:\*\* (.*)$", text, re.MULTILINE)
    figures = re.findall(r"\d[\d,.]*\d|\d", answer)
    assert figures
    assert all(figure in f"{command.code}{command.shown}" for figure in figures)
    for file in re.findall(r"\]\(([\w.-]+\.(?:csv|yaml|sh))\)", text):
        assert file in command.code


@pytest.mark.slow
@pytest.mark.parametrize("page", QUESTIONS, ids=IDS)
def test_the_command_gives_the_answer(page: Path, tmp_path: Path) -> None:
    (command,) = examples(page.read_text(encoding="utf-8"))
    printed = Runner.beside(page, tmp_path).run(command)
    assert printed is not None
    assert printed[0] == 0
    assert matches(command.shown or "", printed[1]), f"refresh: python tests/docs/examples.py {page}"
