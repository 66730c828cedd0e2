"""Work in many processes, of which each may fail without harm to the others."""

from __future__ import annotations

import multiprocessing
import operator
import time

from engine.workers import each


def test_each_item_is_worked_on_once() -> None:
    done = sorted(each(operator.neg, range(7), 2), key=lambda one: one.index)
    assert [(one.index, one.result, one.error) for one in done] == [(n, -n, "") for n in range(7)]


def test_an_item_that_raises_or_kills_its_process_fails_alone() -> None:
    items = ["0", "import os; os._exit(3)", "no such name", "0"]
    done = sorted(each(exec, items, 1), key=lambda one: one.index)
    errors = ["", "the process died (exit code 3)", "SyntaxError: invalid syntax (<string>, line 1)", ""]
    assert [one.error for one in done] == errors


def test_what_is_not_done_in_time_has_failed_and_nothing_goes_on() -> None:
    done = {one.index: one.error for one in each(time.sleep, [1e6, 1e6, 1e6], 2, budget_s=1)}
    assert done == dict.fromkeys(range(3), "not done in time")
    assert multiprocessing.active_children() == []
