"""A workload from the metrics of a server: windows, counters, step times and laws of lengths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blis_py.errors import InputError
from blis_py.traces.from_metrics import _edges, _fitted, _grown, _law, _place, _shortened
from blis_py.traces.prometheus import Metrics


def test_windows_have_at_least_their_length() -> None:
    def edges(times: list[float], window_s: float) -> list[int]:
        metrics: Any = SimpleNamespace(times_s=times)
        return _edges(metrics, window_s)

    assert edges([0, 10, 20, 30], 10) == [0, 1, 2, 3]
    assert edges([0, 10, 20, 30], 11) == [0, 2]
    assert edges([5, 6], 60) == [0, 1]
    assert edges([5, 6, 9], 60) == [0, 2]


@pytest.mark.parametrize(
    ("series", "grown"),
    [
        ([3, 5, 9], [0, 2, 6]),
        ([3, 5, 1, 4], [0, 2, 3, 6]),  # it began anew
        ([3, 3], [0, 0]),
        ([np.nan, 3, np.nan, 5], [0, 0, 0, 2]),
    ],
)
def test_a_counter_grows_across_its_resets(series: list[float], grown: list[float]) -> None:
    assert _grown(series).tolist() == grown


def test_step_times_are_fitted_to_windows_with_enough_steps() -> None:
    """A step of 10 ms, 1 ms a decode and 10 µs a token: given back from four windows."""
    steps = np.array([20.0, 20, 40, 100])
    seqs, tokens = np.array([1.0, 5, 2, 8]), np.array([100.0, 0, 300, 50])
    itl = 0.01 + 0.001 * seqs + 1e-5 * tokens
    gpu, notes = _fitted(itl, steps, seqs * steps, tokens * steps)
    assert gpu == pytest.approx({"step": 1e7, "decode_seqs": 1e6, "prefill_tokens": 1e4})
    assert "fitted to 4 windows, with a mean error of 0.0%" in notes[0]
    few = np.array([19.0, 20, 40, 100])
    gpu, notes = _fitted(itl, few, seqs * few, tokens * few)
    assert gpu == {"step": pytest.approx(1e9 * itl.mean())}
    assert notes[0].startswith("3 windows with steps are too few")
    for spoiled in ("itl", "generated"):
        own, generated = itl.copy(), seqs * steps
        if spoiled == "itl":
            own[0] = np.nan
        else:
            generated[0] = 0
        assert _fitted(own, steps, generated, tokens * steps)[1][0].startswith("3 windows")


def histogram(counts: dict[float, float], total: float | None) -> Metrics:
    metrics: Any = SimpleNamespace(
        buckets=lambda *names: {bound: [0, count] for bound, count in counts.items()},
        of=lambda *names: None if total is None else [0, total],
    )
    return metrics  # type: ignore[no-any-return]


def test_lengths_of_a_histogram_lie_where_their_mean_is() -> None:
    """Ten requests from 1 to 11 tokens and ten from 12 to 21: a mean of 11 is the middle."""
    law, mean, notes = _law(histogram({11: 10, 21: 20, np.inf: 20}, 226.5), ("x",), "prompts")
    assert law == {"type": "empirical", "params": law["params"]}
    assert mean == pytest.approx(11.325)
    assert sum(law["params"].values()) == pytest.approx(20)
    assert min(law["params"]) >= 1
    assert max(law["params"]) <= 21
    own = sum(length * weight for length, weight in law["params"].items()) / 20
    assert own == pytest.approx(mean, abs=0.4)
    assert notes == ["prompts lie evenly about 51% of their bucket, so that the mean is right"]
    _, mean, notes = _law(histogram({11: 10, 21: 20, np.inf: 24}, None), ("x",), "prompts")
    assert notes[0] == "prompts beyond the last bucket are at most 42 tokens"
    assert notes[1] == "prompts lie evenly about 50% of their bucket"
    with pytest.raises(InputError, match="histogram of prompts is empty"):
        _law(histogram({11: 0}, 0), ("x",), "prompts")
    alone, mean, _ = _law(histogram({np.inf: 4}, None), ("x",), "prompts")
    assert alone["params"] == {1: pytest.approx(4)}
    assert mean == 1


@pytest.mark.parametrize(("mean", "place"), [(1, 0.0), (0.5, 0.0), (6, 0.5), (11, 1.0), (99, 1.0)])
def test_the_place_in_a_bucket_follows_from_the_mean(mean: float, place: float) -> None:
    one = np.array([4.0])
    assert _place(one, np.array([1.0]), np.array([11.0]), mean) == place
    assert _place(one, np.array([5.0]), np.array([5.0]), mean) == 0.5


def test_a_shared_prefix_shortens_every_length_to_one_token_at_least() -> None:
    law = {"type": "empirical", "params": {3: 1.0, 5: 2.0, 9: 4.0}}
    assert _shortened(law, 4) == {"type": "empirical", "params": {1: 3.0, 5: 4.0}}
