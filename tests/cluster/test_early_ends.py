"""When the source of a closed loop learns of requests that end without a step; and components by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.cluster import extensions
from blis_py.cluster.extensions import find
from blis_py.cluster.ingress.early_ends import EarlyEnds
from blis_py.core.request import Request

MOST_TOKENS = 100
READY_NS = 30


@pytest.mark.parametrize(
    ("prompt", "limit", "deadline_ns", "at_ns"),
    [
        (10, 5, -1, None),
        (10, 5, 0, READY_NS),  # it has waited too long before it is there
        (10, 5, READY_NS + 9, READY_NS + 9),
        (95, 5, -1, None),
        (96, 5, -1, READY_NS),  # it can never be served
        (96, 5, READY_NS + 9, READY_NS),
        (99, 0, -1, None),  # without a limit it must have room for a token
        (100, 0, -1, READY_NS),
    ],
)
def test_ends_without_a_step_are_expected_at_the_deadline_and_of_the_too_long_at_once(
    prompt: int, limit: int, deadline_ns: int, at_ns: int | None
) -> None:
    calls: list[int] = []
    events: Any = SimpleNamespace(call_at=lambda time_ns, *_: calls.append(time_ns))
    recorder: Any = SimpleNamespace(ready_ns=[READY_NS])
    instances: Any = [SimpleNamespace(most_tokens=most) for most in (MOST_TOKENS, 2 * MOST_TOKENS)]
    source: Any = SimpleNamespace(table=SimpleNamespace(network_ns=None))
    ends = EarlyEnds(events, recorder, instances, source)
    ends.sent([Request("r", 0, prompt, 5, limit, deadline_ns=deadline_ns, row=0)])
    assert calls == ([] if at_ns is None else [at_ns])


def test_what_is_installed_is_loaded_by_name_once_and_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads: list[str] = []

    def entry_points(group: str, name: str) -> list[Any]:
        def load() -> str:
            loads.append(name)
            return f"installed {name}"

        return [SimpleNamespace(load=load)] if group == "blis.routers" and name != "unknown" else []

    monkeypatch.setattr(extensions, "entry_points", entry_points)
    table = {"own": "built in"}
    assert find(table, "blis.routers", "own") == "built in"
    assert find(table, "blis.routers", "other") == "installed other"
    assert find(table, "blis.routers", "other") == "installed other"
    assert find(table, "blis.routers", "unknown") is None
    assert loads == ["other"]
