"""The arguments of a plan or a sweep are read exactly, and a contradiction names one key."""

from __future__ import annotations

import pytest

from blis_py.errors import InputError
from blis_py.planning.axes import axis
from blis_py.planning.goal import parse_at_least
from blis_py.planning.sweep import _axes_of


@pytest.mark.parametrize("number", ["0", "-1", "inf", "nan", "many"])
def test_a_lower_limit_is_a_positive_number(number: str) -> None:
    with pytest.raises(InputError, match="is not a lower limit"):
        parse_at_least([f"requests_per_s={number}"])


def test_a_lower_limit_may_be_less_than_one() -> None:
    texts = ["requests_per_s=0.25", "tokens_per_s_per_user=20, goodput_per_s=3"]
    limits = {"requests_per_s": 0.25, "tokens_per_s_per_user": 20.0, "goodput_per_s": 3.0}
    assert parse_at_least(texts) == limits


def test_of_several_settings_that_some_runs_lack_the_first_by_name_is_reported() -> None:
    lacking = dict.fromkeys(("rate", "tp", "seed", "limit", "gpu", "scheduler", "cv", "dllm"), 1)
    with pytest.raises(InputError, match=r"runs\.cv: "):
        _axes_of([{"model": "qwen3-8b"}, {"model": "qwen3-8b", **lacking}])


def test_listed_runs_vary_what_differs_between_them_in_the_order_in_which_it_occurs() -> None:
    for second in ({"rate": 5, "tp": 1}, {"tp": 1, "rate": 5}):
        axes = _axes_of([{"rate": 5, "tp": 2}, second])
        assert [(each.name, list(each.values)) for each in axes] == [("rate", [5]), ("tp", [2, 1])]
    assert [each.name for each in _axes_of([{"rate": 5}])] == ["rate"]


@pytest.mark.parametrize("name", ["nosuch", "scheduler.nosuch", "seed.more"])
def test_an_axis_is_a_key_of_the_configuration(name: str) -> None:
    with pytest.raises(InputError, match=name):
        axis(name, [1, 2], key="--vary")
