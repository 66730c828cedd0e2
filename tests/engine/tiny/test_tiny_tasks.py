from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.tiny.tasks import MAX_TOKENS, TASKS, check, is_held_out, make, task_of
from engine.tiny.vocab import EOS, MASK, PAD, VOCAB_SIZE, decode, encode

BY_HAND = [
    ("37+58=", "95"),
    ("5-60=", "-55"),
    ("7-7=", "0"),
    ("copy: qwrtz -> ", "qwrtz"),
    ("sort: qwrtz -> ", "qrtwz"),
    ("record: name=bo age=7 -> ", '{"name":"bo","age":7}'),
    ("record: city=ulm -> ", '{"city":"ulm"}'),
]


@pytest.mark.parametrize(("prompt", "answer"), BY_HAND)
def test_answers_worked_out_by_hand_are_right(prompt: str, answer: str) -> None:
    assert TASKS[task_of(prompt)].solve(prompt) == answer
    assert check(prompt, answer)


@pytest.mark.parametrize(("prompt", "answer"), BY_HAND)
@pytest.mark.parametrize("spoil", [lambda a: a[:-1], lambda a: a + "x", lambda a: "", lambda a: "1" + a])
def test_spoilt_answers_are_wrong(prompt: str, answer: str, spoil) -> None:
    assert not check(prompt, spoil(answer))


def test_a_record_may_be_written_in_any_json_style_but_not_with_other_types() -> None:
    prompt = "record: name=bo age=7 -> "
    assert check(prompt, '{"age": 7, "name": "bo"}')
    assert not check(prompt, '{"name":"bo","age":"7"}')
    assert not check(prompt, '{"name":"bo"}')


@given(seed=st.integers(0, 2**32), task=st.sampled_from([None, *TASKS]), held_out=st.booleans())
def test_every_problem_is_solved_fits_and_lies_on_its_side_of_the_split(seed, task, held_out) -> None:
    prompt, answer = make(Random(seed), task, held_out=held_out)
    assert check(prompt, answer)
    assert task in (None, task_of(prompt))
    assert len(encode(prompt)) + len(encode(answer)) + 1 <= MAX_TOKENS
    assert is_held_out(prompt) == held_out
    assert make(Random(seed), task, held_out=held_out) == (prompt, answer)


@given(st.text(), st.lists(st.integers(0, 300)))
def test_bytes_survive_the_vocabulary_and_nothing_after_eos_is_read(text: str, rest: list[int]) -> None:
    assert decode([*encode(text), EOS, *rest]) == text
    assert max(encode(text), default=0) < 256 <= min(PAD, EOS, MASK) <= max(PAD, EOS, MASK) < VOCAB_SIZE
