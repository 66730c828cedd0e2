"""Error bars: the same configuration with other seeds and coefficients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_py.api import Simulation, build, configure
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.sensitivity.reruns import MIN, Redrawable, Reruns, rerun_seed

Blis = Callable[..., tuple[int, str, str]]
SMALL: dict[str, Any] = {"model": "qwen3-14b", "num_requests": 15, "rate": 4.0, "output_tokens": 20}


class Spread(Linear):
    """A latency model of which set i takes i ms more per step."""

    def redrawn(self, index: int) -> LatencyModel:
        return linear([(10 + i) * 1e6 for i in range(11)][index])


def linear(step_ns: float) -> Linear:
    return Linear(LinearCoefficients(gpu=LinearCosts(step=step_ns), host=LinearCosts()))


def spread() -> Spread:
    return Spread(LinearCoefficients(gpu=LinearCosts(step=10e6), host=LinearCosts()))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    build(**SMALL).run().save(tmp_path / "out", plots=False)
    return tmp_path / "out" / "trace.csv"


def of(simulation: Simulation, count: int = MIN) -> Any:
    return Reruns(simulation, count).intervals()


@pytest.mark.slow
def test_an_interval_holds_nine_of_ten_reruns() -> None:
    simulation, count = build(**SMALL), 20
    result = of(simulation, count)
    again = [
        build(configure(**SMALL, seed=rerun_seed(simulation.config.seed, i))).run().summary["cluster"]
        for i in range(count)
    ]
    for name in ("ttft_ms", "e2e_ms"):
        means = [cluster[name]["mean"] for cluster in again]
        low, high = result.metrics[f"{name}.mean"]
        assert (low, high) == pytest.approx(tuple(np.percentile(means, [5, 95])))
        assert sum(low <= mean <= high for mean in means) == 18
    assert result.varied == ("the requests",)


def test_configurations_meet_the_same_requests_in_their_reruns() -> None:
    one, other = (Reruns(build(**SMALL, max_num_seqs=n), MIN) for n in (2, 64))
    for index in range(3):
        tables = [reruns._rerun(index).table for reruns in (one, other)]
        for column in ("arrival_ns", "prompt_tokens", "output_tokens"):
            assert np.array_equal(getattr(tables[0], column), getattr(tables[1], column))
    assert len({rerun_seed(42, i) for i in range(1000)}) > 990
    assert rerun_seed(1, 0) != rerun_seed(2, 0)


def test_the_same_seed_gives_the_same_intervals() -> None:
    assert of(build(**SMALL)) == of(build(**SMALL))


def test_a_model_with_a_spread_is_redrawn(trace: Path) -> None:
    simulation = build(model="qwen3-14b", trace=str(trace)).with_pool(latency=spread())
    assert isinstance(simulation.latency, Redrawable)
    result = of(simulation, 11)
    assert result.varied == ("the coefficients of the latency model",)
    low, high = result.metrics["itl_ms.p50"]
    assert (low, high) == pytest.approx((10.5, 19.5)), "5 % and 95 % of 10, 11, ... 20 ms"


def test_the_probability_of_an_slo_is_the_share_of_reruns_that_meet_it(trace: Path) -> None:
    targets = ("itl.p50=14500us", "itl.p50=1ms", "batch.itl.p50=1s")
    simulation = build(model="qwen3-14b", trace=str(trace), slo=targets)
    result = of(simulation.with_pool(latency=spread()), 10)
    assert result.slo == {targets[0]: 0.5, targets[1]: 0.0, targets[2]: None}


def test_reruns_that_would_all_be_the_same_are_refused(trace: Path) -> None:
    assert not isinstance(linear(1e6), Redrawable)
    with pytest.raises(InputError, match="all reruns would be the same"):
        Reruns(build(model="qwen3-14b", trace=str(trace)), MIN)
    shares = build(model="qwen3-14b", trace=str(trace), slo_shares={"batch": 0.5, "standard": 0.5})
    assert Reruns(shares, MIN).varied == ("the SLO classes of the requests",)


def test_more_reruns_than_sets_of_coefficients_are_refused(trace: Path) -> None:
    simulation = build(model="qwen3-14b", trace=str(trace)).with_pool(latency=spread())
    with pytest.raises(InputError, match="more reruns than"):
        Reruns(simulation, 12)


def test_progress_counts_the_requests_of_all_reruns() -> None:
    lines: list[tuple[int, int]] = []
    Reruns(build(**SMALL), MIN).intervals(lambda ended, total: lines.append((ended, total)))
    assert {total for _, total in lines} == {15 * MIN}
    assert [ended for ended, _ in lines] == sorted(ended for ended, _ in lines)
    assert lines[-1][0] == 15 * MIN


def test_json_and_summary_file_have_the_intervals(blis: Blis, small: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    flags = ("--intervals", MIN, "--slo", "ttft.p99=1s", "--out", out, "--no-plots", "--format", "json")
    code, text, _ = blis("run", *small, *flags)
    assert code == 0
    bars = json.loads(text)["intervals"]
    assert (bars["reruns"], bars["level"], bars["slo"]) == (MIN, 0.9, {"ttft.p99=1s": 1.0})
    low, high = bars["metrics"]["ttft_ms.p99"]
    assert 0 < low < high
    assert json.loads((out / "summary.json").read_text())["intervals"] == bars
    code, plain, _ = blis("run", *small)
    assert "intervals" not in json.loads(plain)


def test_the_table_shows_them_beside_the_run(blis: Blis, small: tuple[str, ...]) -> None:
    flags = ("--intervals", MIN, "--slo", "ttft.p99=1s", "--goodput", "ttft:500", "--format", "table")
    _, text, _ = blis("run", *small, *flags)
    for words in (
        "10 reruns",
        "TTFT p99, ms",
        "ITL mean, ms",
        "goodput",
        "ttft.p99=1s: met with probability 100%",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--intervals", 3), "too few"),
        (("--intervals", 20, "--format", "vllm"), "no place for intervals"),
        (("--intervals", "many"), "whole number"),
        (("--record-itl",), "--out"),
    ],
)
def test_wrong_flags_are_bad_input(
    flags: tuple[object, ...], complaint: str, blis: Blis, small: tuple[str, ...]
) -> None:
    code, out, error = blis("run", *small, *flags)
    assert (code, out) == (2, "")
    assert complaint in error


def test_the_model_of_each_pool_is_redrawn() -> None:
    apart = build(**SMALL, prefill_instances=1, decode_instances=1)
    for prefill, decode, gaps_ms in (
        (linear(10e6), spread(), (10.45, 18.55)),
        (spread(), linear(10e6), (10, 10)),
    ):
        result = of(apart.with_latencies([prefill, decode]))
        assert result.varied[-1] == "the coefficients of the latency model"
        assert result.metrics["itl_ms.p50"] == pytest.approx(gaps_ms), "of the decode instance alone"
