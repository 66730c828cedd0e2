"""The runner of jobs."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.planning.runner import Runner
from blis_py.planning.store import Nowhere


@pytest.mark.parametrize("fails", [False, True])
def test_the_workers_are_closed_at_the_end_of_all_jobs_and_after_an_error(fails: bool) -> None:
    ends: list[str] = []
    executor: Any = SimpleNamespace(close=lambda: ends.append("closed"), workers=3)
    with suppress(ZeroDivisionError), Runner(executor, Nowhere()) as runner:
        assert runner.workers == 3
        assert not ends
        if fails:
            raise ZeroDivisionError
    assert ends == ["closed"]
