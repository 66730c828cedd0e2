"""What is typed in a way that other programs take leads on."""

from __future__ import annotations

import pytest

import blis_py as blis
from blis_py.cli import main
from blis_py.errors import InputError


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "run"]) == 0
    assert "Usage: blis run" in capsys.readouterr().out


def test_a_range_in_a_help_text_is_printed_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    """Between colons, rich reads `:100:` as the name of a picture."""
    assert main(["sweep", "--help"]) == 0
    assert "rate=10:100:10" in capsys.readouterr().out


def test_two_values_of_one_setting_point_to_a_comparison() -> None:
    with pytest.raises(InputError, match=r"takes one value .*blis sweep --vary scheduler=fcfs,sjf"):
        blis.build(model="qwen3-14b", scheduler="fcfs,sjf")


@pytest.mark.parametrize("engine", ["blis", "vllm"])
def test_scorers_without_the_policy_that_uses_them_are_a_note(engine: str) -> None:
    given = {"model": "qwen3-14b", "num_requests": 3, "routing_scorers": {"queue-depth": 1.0}}
    run = blis.build(**given, engine=engine, num_instances=2)
    assert any("routing.scorers has no effect on round-robin" in note for note in run.notes)
