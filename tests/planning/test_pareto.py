"""Throughput of a GPU against the speed of a user."""

from __future__ import annotations

import pytest

from blis_py.errors import InputError
from blis_py.planning import pareto as module
from blis_py.planning.api import pareto


@pytest.mark.slow
def test_no_point_of_the_front_is_beaten_in_both_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONCURRENCIES", (1, 8, 64))
    load = {"model": "llama-3.1-8b", "prompt_tokens": 200, "output_tokens": 40}
    found = pareto(**load, vary={"tp": [1, 2, 3]}, workers=1, cache=False)
    assert len(found.points) == 6
    assert "does not divide" in found.refused[0]
    users = [each.per_user for each in found.front]
    assert users == sorted(users, reverse=True)
    assert [each.per_gpu for each in found.front] == sorted(each.per_gpu for each in found.front)
    assert "tokens/s/user" in repr(found)
    fast = pareto(**load, vary={"tp": [1]}, slo="tpot.p99=1us", workers=1, cache=False)
    assert not fast.front


def test_a_rate_contradicts_it() -> None:
    with pytest.raises(InputError, match="is chosen by --pareto"):
        pareto(model="llama-3.1-8b", rate=3, workers=1, cache=False)
