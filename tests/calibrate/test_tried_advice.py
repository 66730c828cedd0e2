"""Advice of a client's autopsy reduces the error when it is applied."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py.api import configure, run
from blis_py.calibrate.change import AdvisedChange
from blis_py.calibrate.client_autopsy import ClientAutopsy, client_autopsies
from blis_py.calibrate.token_times import TokenTimes, token_times
from blis_py.calibrate.tried_advice import tried
from blis_py.config.models import RunConfig

LOAD: dict[str, Any] = {"model": "llama-3.1-8b", "rate": 20.0, "num_requests": 250, "timeout": None}


def times(**settings: Any) -> TokenTimes:
    return token_times(run(**LOAD, **settings).record, "x")


def advised(**server: Any) -> tuple[ClientAutopsy, ClientAutopsy]:
    ttft, tpot = tried(client_autopsies(times(**server), times()), configure(**LOAD))
    return ttft, tpot


def fixes(one: ClientAutopsy) -> list[str]:
    return [part.fix for part in one.parts if part.fix and part.change is not None]


def test_a_factor_that_queues_amplify_is_advised_by_the_amount_that_helps() -> None:
    """Slopes alone propose a factor of about 1.6, with which the error is as large with the other sign."""
    ttft, tpot = advised(latency={"step_scale": 1.3})
    (fix,) = fixes(tpot)
    factor = float(fix.split(" by ")[1].split(",")[0])
    error = times(latency={"step_scale": factor}).tpot_s.mean() / tpot.measured_s - 1
    assert abs(error) < abs(tpot.error_s / tpot.measured_s) / 2
    left = [fix for fix in fixes(ttft) if "--async" in fix or "add 2" in fix]
    assert left == []  # most of its error follows from the step times


def test_a_front_end_is_advised_where_step_times_are_right() -> None:
    ttft, _ = advised(frontend_ms=[20.0, 0.0, 0.047, 0.001])
    assert fixes(ttft) == ["add 14.3 ms to --frontend-ms (tried: TTFT is then -0.0% off)"] or fixes(ttft) == [
        "add 14.3 ms to --frontend-ms (tried: TTFT is then +0.0% off)"
    ]


def test_what_is_set_already_is_not_advised() -> None:
    config = configure(**LOAD)
    assert config.scheduler.async_scheduling
    assert AdvisedChange("async_scheduling", 1.0).on(config) == config
    ttft, _ = advised(latency={"step_gap_us": [3000.0]})
    assert not any("--async-scheduling" in fix for fix in fixes(ttft))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (AdvisedChange("gap_us", 500.0), (500.0, 0.0)),
        (AdvisedChange("gap_seq_us", 20.0), (0.0, 20.0)),
        (AdvisedChange("gap_us", -500.0), (0.0, 0.0)),
    ],
)
def test_a_gap_is_raised_but_not_below_nothing(change: AdvisedChange, key: tuple[float, ...]) -> None:
    changed = change.on(configure(**LOAD))
    assert isinstance(changed, RunConfig)
    assert changed.latency.step_gap_us == key


def test_step_times_that_have_no_such_number_get_no_advice() -> None:
    """A gap belongs to `trained`; with another latency model it would be refused."""
    config = configure(**LOAD, latency_model="roofline")
    one = client_autopsies(times(latency={"step_gap_us": [3000.0]}), times(latency_model="roofline"))
    assert [fix for each in tried(one, config) for fix in fixes(each) if "latency." in fix] == []
