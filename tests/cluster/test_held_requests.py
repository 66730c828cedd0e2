"""Requests that arrive while no instance is ready wait for one that is coming, and no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.cluster.routing.dispatcher import Dispatcher

Sent = list[tuple[int, str]]


class Holding:
    """What a dispatcher with two held requests has, at time 9."""

    def __init__(self, ready: list[int], coming: bool) -> None:
        self._ready, self._instances, self._may_get = ready, [0], set[int]()
        self._fleet = SimpleNamespace(now_ns=9, coming=coming)
        self._held = [(3, "first"), (5, "second")]
        self.waits: Sent = []
        self.dispatched: list[Sent] = []
        self._recorder = SimpleNamespace(held=lambda request, ns: self.waits.append((ns, request)))

    def __call__(self, due: Sent) -> None:
        self.dispatched.append(due)

    _checked = None


@pytest.mark.parametrize(
    ("ready", "coming", "goes"),
    [([0], True, True), ([0], False, True), ([], True, False), ([], False, True)],
)
def test_held_requests_go_on_once_an_instance_is_ready_or_none_is_coming(
    ready: list[int], coming: bool, goes: bool
) -> None:
    """In the last case they are rejected where they are dispatched."""
    holding: Any = Holding(ready, coming)
    for _ in range(2):
        Dispatcher._change(holding, 0, "ready")
    assert holding.dispatched == ([[(9, "first"), (9, "second")]] if goes else [])
    assert holding.waits == ([(6, "first"), (4, "second")] if goes else [])
    assert len(holding._held) == (0 if goes else 2)
