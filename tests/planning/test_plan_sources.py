"""Prices, errors of step times, and start scripts: each says where it is from, and what it cannot do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import blis_py as blis
from blis_py.api import configure
from blis_py.errors import InputError
from blis_py.latency.fitted_profile import Accuracy, FittedProfile, RegimeFit, write_profile
from blis_py.planning import serving
from blis_py.planning import validated as sources
from blis_py.planning.goal import Goal, parse_attainment, parse_share
from blis_py.planning.job import Job
from blis_py.planning.prices import Prices, parse_prices
from blis_py.planning.result import Candidate
from blis_py.planning.uncertainty import _of_fitted, errors_of
from blis_py.planning.worker import outcome_of, varied


def test_given_prices_go_before_bundled_ones_however_a_gpu_is_spelled() -> None:
    prices = Prices({"NVIDIA H100 80GB HBM3": 2.5})
    given, bundled = prices.of("h100"), prices.of("L40S")
    assert given is not None
    assert (given.per_hour, given.source) == (2.5, "as given")
    assert bundled is not None
    assert bundled.per_hour == pytest.approx(0.00037 * 3600)
    assert "docs.runpod.io" in bundled.source
    assert prices.of("mi300x") is None
    assert prices.missing(["h100", "mi300x", "mi300x"]) == ["mi300x"]


def test_a_price_of_what_is_no_gpu_is_refused() -> None:
    """A known GPU need not be among those of the plan, and one of the user's own has a price by its name."""
    Prices({"h100": 2, "My Own GPU": 3}).check(["my own gpu"])
    with pytest.raises(InputError, match=r"--price: no such GPU .*did you mean 'h100'"):
        Prices({"h10": 2}).check(["a100"])
    for max_rate in (False, True):
        plan = {
            "model": "llama-3.1-8b",
            "num_requests": 5,
            "slo": "ttft.p99=1s",
            "workers": 1,
            "cache": False,
        }
        with pytest.raises(InputError, match="no such GPU"):
            blis.plan(prices={"nosuch": 3}, max_rate=max_rate, draws=0, **plan)


def test_prices_are_read_as_they_are_written() -> None:
    assert parse_prices(["h100=2.5,l40s=$0.9", "b200=5"]) == {"h100": 2.5, "l40s": 0.9, "b200": 5.0}
    for text in ("h100", "h100=", "h100=0", "h100=nan", "h100=2,h100=3", "=3"):
        with pytest.raises(InputError, match="is not the price of a GPU"):
            parse_prices([text])


def test_shares_are_read_as_they_are_written() -> None:
    assert parse_attainment("99%") == {"": 0.99}
    assert parse_attainment("critical=99.5%, standard=0.9") == {"critical": 0.995, "standard": 0.9}
    assert parse_share("1%", key="--max-lost") == 0.01
    for text in ("150%", "-1", "much", "a=9,a=9"):
        with pytest.raises(InputError):
            parse_attainment(text)


TTFT = [("ttft", "p99")]


def test_errors_are_drawn_from_runs_like_the_one_that_is_planned() -> None:
    same = errors_of(configure(model="llama-2-7b", gpu="h100"), 20, TTFT)
    narrow = errors_of(configure(model="qwen3-32b-fp8", gpu="h100"), 20, TTFT)
    unseen = errors_of(configure(model="llama-3.1-8b", gpu="l40s", concurrency=8), 20, TTFT)
    assert same is not None
    assert narrow is not None
    assert unseen is not None
    assert "16-bit, dense, open loop; H100" in same.source
    assert same.few
    assert "FP8" in narrow.source
    assert "none of open loop" in narrow.source
    assert "not validated for llama-3.1-8b 16-bit on L40S under vllm" in unseen.source
    assert len(same.draws) == 20


def test_an_error_of_first_tokens_is_more_than_that_of_steps() -> None:
    """The validated TTFT of an open loop is off by up to a quarter where steps are off by 3 %."""
    errors = errors_of(configure(model="llama-2-7b", gpu="h100"), 20, TTFT)
    assert errors is not None
    assert errors.typical < 0.05
    assert max(draw.residual["ttft", "p99"] for draw in errors.draws) > 1.25


@pytest.mark.parametrize(("mape", "bias"), [(0.1, 0.02), (3.0, 0.0)])
def test_errors_of_a_fitted_profile_are_those_of_its_worst_regime(
    mape: float, bias: float, tmp_path: Path
) -> None:
    """Normal: the median draw has the bias, the mean of |error - bias| is the error; no step takes over 10
    times as long as predicted."""
    regimes = {
        name: RegimeFit({"step": 1e6}, {"step": 1e5}, cross_validated=Accuracy(10, error, bias, 0.2, 0.0))
        for name, error in (("graph", 0.01), ("eager", mape))
    }
    meta = {"device": "a GPU", "graph_buckets": [1, 2]}
    folder = write_profile(tmp_path, meta, FittedProfile(meta, regimes)).parent
    found = _of_fitted(str(folder), 101)
    assert found is not None
    steps = [draw.step for draw in found.draws]
    assert steps[50] == pytest.approx(1 / (1 + bias))
    assert steps == sorted(steps)
    assert found.source.endswith(f"{100 * mape:.1f} % mean error")
    if mape < 1:
        errors = [abs(1 / step - 1 - bias) for step in steps]
        assert sum(errors) / 101 == pytest.approx(mape, rel=0.02)
    else:
        assert max(steps) == pytest.approx(10)


def test_measured_points_are_those_of_a_known_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others, those without an error or in contradiction, and dense models of vLLM are not drawn from."""

    def point(name: str, configuration: str, **more: Any) -> dict[str, Any]:
        errors = {"ttft.mean": 0.25, "e2el.p99": -0.5}
        given = {"errors": errors, "contradictory": False, "learned": name == "a"}
        return {"id": name, "configuration": configuration, **given, **more}

    known = "sglang, llama-3.1-8b fp8 on h100 TP2"
    points = [
        point("other", "by hand"),
        point("a", known),
        point("without", known, errors={}),
        point("contradiction", known, contradictory=True),
        point("dense", "vllm, llama-3.1-8b fp8 on h100 TP2"),
        point("b", "vllm, gpt-oss fp4 on b200 TP1, as it is"),
    ]
    monkeypatch.setattr(sources, "read_result", lambda name, otherwise: {"points": points})
    ratios = {("ttft", "mean"): 0.8, ("e2e", "p99"): 2.0}
    closed = sources.CLOSED
    assert list(sources._points()) == [
        sources.Validated(
            "a", "llama-3.1-8b", "h100", 2, "FP8", sources.DENSE, closed, sources.LEARNED, ratios, "sglang"
        ),
        sources.Validated(
            "b", "gpt-oss", "b200", 1, "FP4", sources.EXPERTS, closed, sources.NOT_LEARNED, ratios, "vllm"
        ),
    ]


def test_nothing_is_drawn_for_a_latency_model_without_validated_runs() -> None:
    assert errors_of(configure(model="llama-3.1-8b", latency_model="roofline"), 20, TTFT) is None
    assert errors_of(configure(model="llama-3.1-8b"), 0, TTFT) is None


def candidate(**settings: Any) -> Candidate:
    config = configure(model="llama-3.1-8b", num_requests=3, **settings)
    outcome = outcome_of(varied(Job(config)).run())
    return Candidate({}, config.num_instances, config, config.tp, None, Goal().judge(outcome), outcome)


def test_what_starts_vllm_is_what_was_simulated() -> None:
    """Its flags are read back by `blis run`."""
    script = serving.vllm_script(
        candidate(tp=2, scheduler="priority-fcfs", max_num_seqs=64, max_model_len=4096)
    )
    words = shlex.split(next(line for line in script.splitlines() if line.startswith("exec ")))
    assert words[1:4] == ["vllm", "serve", "meta-llama/Llama-3.1-8B"]
    flags = dict(zip(words[4::2], words[5::2], strict=False))
    assert flags["--tensor-parallel-size"] == "2"
    assert flags["--max-num-seqs"] == "64"
    assert flags["--max-model-len"] == "4096"
    assert flags["--scheduling-policy"] == "priority"
    assert words[-1] == "--async-scheduling"


def test_what_an_engine_cannot_do_is_said_where_it_is_started() -> None:
    lpm = candidate(scheduler="lpm", prefix_cache="radix", async_scheduling=False)
    assert "# vLLM has no scheduling policy lpm" in serving.vllm_script(lpm)
    assert "radix tree is simulated" in serving.vllm_script(lpm)
    assert "--schedule-policy lpm" in serving.sglang_script(lpm)
    assert "--disable-overlap-schedule" in serving.sglang_script(lpm)
    assert "SGLang has no schedule policy sjf" in serving.sglang_script(candidate(scheduler="sjf"))
    assert "--no-enable-prefix-caching" in serving.vllm_script(candidate(prefix_cache="none"))


def test_what_starts_sglang_has_the_share_that_was_derived() -> None:
    own = serving.sglang_script(candidate(engine="sglang", gpu="b200"))
    assert "--chunked-prefill-size 16384" in own
    assert "--mem-fraction-static 0.854" in own
    assert "compare the pool" not in own
    assert "compare the pool" in serving.sglang_script(candidate())


def test_targets_in_one_text_are_as_good_as_in_a_list() -> None:
    load = {"model": "llama-3.1-8b", "num_requests": 5}
    one = blis.run(**load, slo="ttft.p99=500ms tpot.p99=50ms", goodput="ttft:500")
    assert (
        one.config == blis.run(**load, slo=["ttft.p99=500ms", "tpot.p99=50ms"], goodput=["ttft:500"]).config
    )
    assert [each["met"] for each in one.summary["slo"]] == [True, True]


def test_runs_of_which_a_figure_is_missing_or_inconsistent_validate_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good: dict[str, Any] = {
        "prices": "trained, new GPU",
        "truth": "closed loops",
        "case": "a",
        "metric": "TTFT",
    }
    good |= {"statistic": "mean", "consistent": True, "predicted": 2.0, "measured": 3.0}
    good |= {"model": "m FP8", "gpu": "h100", "tp": 2}
    changes: list[dict[str, object]] = [{"consistent": False}, {"predicted": None}, {"measured": None}]
    changes += [{"prices": "roofline, new GPU"}, {"prices": "trained, all"}, {"truth": "a simulator"}]
    rows = [good, *({**good, "case": str(n), **change} for n, change in enumerate(changes))]
    monkeypatch.setattr(sources, "read_result", lambda *_: rows)
    (only,) = sources._held_out("trained")
    assert (only.case, only.model, only.precision, only.ratios) == ("a", "m", "FP8", {("ttft", "mean"): 1.5})
