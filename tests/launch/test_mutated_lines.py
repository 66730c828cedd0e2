"""Mutated launch lines are read or refused in one sentence, and never end in a traceback."""

from __future__ import annotations

import random

import pytest
from launch_fixtures import EXPECTED, FOLDER

from blis_py.errors import InputError
from blis_py.launch.reader import Launch, read_launch

SCRIPTS = [name for name in EXPECTED if name.endswith(".sh")]
MARKS = [
    *("'", '"', "\\", "\\\n", "\\ \n", "$", "${", "}", "$(", ")", "((", "=", "--", "-", " ", "\n", "\t"),
    *("`", ";", "&&", "|", ">", "<<EOF", "#", "[", "]]", "*", "\x00", "é", "–", "1e999", "{}", "[]"),
]


def mutated(text: str, chance: random.Random) -> str:
    """The text after one to four changes of quotes, continuations, variables, signs or repeated flags."""
    for _ in range(chance.randint(1, 4)):
        kind, at = chance.randrange(6), chance.randrange(len(text) + 1)
        words = text.split(" ")
        if kind == 0:
            text = text[:at] + chance.choice(MARKS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + chance.randint(1, 8) :]
        elif kind == 2:
            word = chance.choice(words)
            text = f"{text.rstrip()} {word} {chance.choice(words)}\n"
        elif kind == 3:
            text = text.replace(
                " --", chance.choice(["=--", " --x=", " -", "\n--", " --no-"]), chance.randint(1, 3)
            )
        elif kind == 4:
            text = text.replace("=", chance.choice([" ", "==", " = ", ""]), chance.randint(1, 5))
        else:
            chance.shuffle(words)
            text = " ".join(words)
    return text


def read(text: str, name: str) -> Launch | str:
    """What was read, or the complaint."""
    try:
        return read_launch([text if len(text.split()) > 1 else f"{text} x"], EXPECTED[name].get("with", {}))
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("number", range(20))
def test_ten_mutated_scripts_end_in_a_configuration_or_a_sentence(number: int) -> None:
    chance = random.Random(number)
    ends = set()
    for _ in range(10):
        name = chance.choice(SCRIPTS)
        outcome = read(mutated((FOLDER / name).read_text(encoding="utf-8"), chance), name)
        ends.add(type(outcome))
        if isinstance(outcome, Launch):
            assert "pools" in outcome.values or outcome.values["tp"] >= 1
            assert "\n" not in "".join(outcome.lines())
        else:
            assert outcome
            assert "\n" not in outcome
    assert ends <= {Launch, str}
