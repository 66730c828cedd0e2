"""Synthetic tasks whose answers can be checked.

Each task draws prompts and solves them; the solution is a function of the prompt alone.

    37+48=                          85
    copy: qwrtz ->                  qwrtz
    sort: qwrtz ->                  qrtwz
    record: name=bo age=7 ->        {"name":"bo","age":7}

They differ in how much of an answer is certain before its first token is written, so that a model that
denoises blocks needs one round for some blocks and many for others.
"""

from __future__ import annotations

import json
import operator
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from string import ascii_lowercase

MAX_TOKENS = 96  # no prompt with its answer and EOS is longer


@dataclass(frozen=True)
class Task:
    """`draw` draws a prompt, `solve` answers it, `same` compares a text with that answer."""

    draw: Callable[[Random], str]
    solve: Callable[[str], str]
    same: Callable[[str, str], bool] = operator.eq


def size(rng: Random, least: int, most: int) -> int:
    """A number between the two bounds, biased to small ones."""
    return rng.randint(least, rng.randint(least, most))


def letters(rng: Random, count: int) -> str:
    return "".join(rng.choices(ascii_lowercase, k=count))


def draw_arithmetic(rng: Random) -> str:
    return f"{size(rng, 0, 49)}{rng.choice('+-')}{size(rng, 0, 49)}="


def solve_arithmetic(prompt: str) -> str:
    sign = "+" if "+" in prompt else "-"
    left, right = prompt.removesuffix("=").split(sign)
    return str(int(left) + int(right) if sign == "+" else int(left) - int(right))


def body(prompt: str) -> str:
    """`qwrtz` of `copy: qwrtz -> `."""
    return prompt.split(": ", 1)[1].removesuffix(" -> ")


def draw_copy(rng: Random) -> str:
    return f"copy: {letters(rng, size(rng, 1, 24))} -> "


def draw_sort(rng: Random) -> str:
    return f"sort: {letters(rng, size(rng, 2, 10))} -> "


def solve_sort(prompt: str) -> str:
    return "".join(sorted(body(prompt)))


def draw_record(rng: Random) -> str:
    fields = f"name={letters(rng, rng.randint(2, 6))} age={rng.randint(1, 99)}"
    city = f" city={letters(rng, rng.randint(2, 6))}" if rng.random() < 0.5 else ""
    return f"record: {fields}{city} -> "


def solve_record(prompt: str) -> str:
    pairs = (field.split("=") for field in body(prompt).split())
    record = {key: int(value) if value.isdigit() else value for key, value in pairs}
    return json.dumps(record, separators=(",", ":"))


def same_json(answer: str, text: str) -> bool:
    try:
        return bool(json.loads(answer) == json.loads(text))
    except json.JSONDecodeError:
        return False


TASKS = {
    "arithmetic": Task(draw_arithmetic, solve_arithmetic),
    "copy": Task(draw_copy, body),
    "sort": Task(draw_sort, solve_sort),
    "record": Task(draw_record, solve_record, same_json),
}


def task_of(prompt: str) -> str:
    """The name of the task a prompt belongs to."""
    name = prompt.split(": ", 1)[0]
    return name if name in TASKS else "arithmetic"


def is_held_out(prompt: str) -> bool:
    """Whether a prompt is held out from training: one in eight, determined by the prompt alone."""
    return zlib.crc32(prompt.encode()) % 8 == 0


def make(rng: Random, task: str | None = None, *, held_out: bool = True) -> tuple[str, str]:
    """Draw a problem: prompt and answer, both without EOS.

    Args:
        rng: source of randomness; the same state gives the same problem.
        task: a key of `TASKS`; a random one if `None`.
        held_out: whether to draw a held-out problem or a training problem.
    """
    chosen = TASKS[task or rng.choice(list(TASKS))]
    while True:
        prompt = chosen.draw(rng)
        if is_held_out(prompt) == held_out:
            return prompt, chosen.solve(prompt)


def check(prompt: str, text: str) -> bool:
    """Whether `text` (without EOS) answers the prompt."""
    task = TASKS[task_of(prompt)]
    return task.same(task.solve(prompt), text)
