"""Errors that a plan draws from: whose they are, and how many runs they rest on."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from small_plans import SERVED

from blis_py.api import configure
from blis_py.planning import uncertainty
from blis_py.planning.uncertainty import FEW, Draw, Errors, errors_of


def test_errors_of_a_model_without_a_profile_are_those_of_its_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a model fitted to a profile brings the errors of its fit."""
    config = configure(**SERVED)
    assert errors_of(config, 0, []) is None
    models: list[str] = []

    def validated(model: str) -> tuple[()]:
        models.append(model)
        return ()

    monkeypatch.setattr(uncertainty, "validated", validated)
    monkeypatch.setattr(uncertainty, "_of_fitted", lambda profile, count: (profile, count))
    for model, profile in (("trained", None), ("trained", "own.yaml"), ("fitted", None)):
        latency = replace(config.latency, model=model, profile=profile)
        assert errors_of(replace(config, latency=latency), 3, [("ttft", "p99")]) is None
    assert models == ["trained", "trained", "fitted"]
    own: Any = replace(config.latency, model="fitted", profile="own.yaml")
    assert errors_of(replace(config, latency=own), 3, []) == ("own.yaml", 3)  # type: ignore[comparison-overlap]


def test_the_errors_of_the_pool_with_the_most_gpus_count(monkeypatch: pytest.MonkeyPatch) -> None:
    def pool(count: int, tp: int) -> Any:
        return SimpleNamespace(count=count), SimpleNamespace(tp=tp)

    whole: Any = SimpleNamespace(tp=1)
    pools = [pool(2, 1), pool(1, 4), pool(3, 1)]
    monkeypatch.setattr(uncertainty, "pool_configs", lambda _: pools)
    assert uncertainty._largest(whole) is pools[1][1]
    monkeypatch.setattr(uncertainty, "pool_configs", lambda _: pools[:1])
    assert uncertainty._largest(whole) is whole


@pytest.mark.parametrize(("steps", "typical"), [((), 0.0), ((1.0,), 0.0), ((0.8, 1.25), 0.225)])
def test_the_typical_error_is_the_mean_distance_of_the_truth(
    steps: tuple[float, ...], typical: float
) -> None:
    assert Errors(tuple(map(Draw, steps)), "runs", 9).typical == pytest.approx(typical)


@pytest.mark.parametrize(("runs", "few"), [(0, False), (1, True), (FEW - 1, True), (FEW, False)])
def test_few_runs_say_little_and_none_is_a_cross_validation(runs: int, few: bool) -> None:
    assert Errors((), "runs", runs).few == few
