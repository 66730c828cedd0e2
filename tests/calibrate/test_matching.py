"""Which requests are the same in two runs, and that unrelated runs are not compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from blis_py.calibrate.compare import calibrate
from blis_py.calibrate.matching import matched
from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError
from blis_py.requests.table import Labels


def run(seed: int, count: int = 200, equal: bool = False, rate: float = 5.0) -> TokenTimes:
    random = np.random.default_rng(seed)
    tokens = np.full(count, 64) if equal else random.integers(10, 400, count)
    return TokenTimes(
        source=f"run {seed}",
        request_id=np.arange(count),
        slo_class=Labels.constant("", count),
        output_tokens=tokens,
        sent_s=np.cumsum(random.exponential(1 / rate, count)),
        ttft_s=np.full(count, 0.1),
        e2e_s=0.1 + tokens * 0.01,
        incomplete=0,
        prompt_tokens=np.full(count, 128) if equal else random.integers(50, 2000, count),
    )


def test_requests_sent_at_the_same_time_are_the_same_whatever_their_answers() -> None:
    one = run(0)
    other = replace(one, output_tokens=one.output_tokens + 7, sent_s=one.sent_s + 100.0)
    ours, theirs = matched(one, other)
    assert ours.tolist() == theirs.tolist() == list(range(200))


def test_requests_of_the_same_lengths_are_the_same_whenever_they_were_sent() -> None:
    one = run(0)
    assert len(matched(one, replace(one, sent_s=one.sent_s * 3))[0]) == 200


def test_requests_under_other_numbers_are_found_by_their_lengths() -> None:
    one = run(0)
    order = np.random.default_rng(1).permutation(200)
    other = replace(one.take(order), request_id=np.arange(200))
    ours, theirs = matched(one, other)
    assert (order[theirs] == ours).all()


def test_unrelated_runs_are_refused() -> None:
    with pytest.raises(InputError, match="not of the same requests: of 200 with the same number"):
        calibrate(run(0), run(1))


def test_the_same_arrivals_with_other_prompts_are_another_run() -> None:
    one, lengths = run(0), run(1)
    other = replace(one, prompt_tokens=lengths.prompt_tokens, output_tokens=lengths.output_tokens)
    with pytest.raises(InputError, match="100% were sent at the same time"):
        calibrate(one, other)


def test_equal_lengths_at_another_rate_are_another_run() -> None:
    with pytest.raises(InputError, match="not of the same requests"):
        calibrate(run(0, equal=True), run(1, equal=True, rate=50.0))


def test_closed_loops_of_equal_lengths_are_the_same_if_as_many_requests_are_in_flight() -> None:
    count, at_once = 200, 8

    def loop(e2e_s: float) -> TokenTimes:
        sent = np.repeat(np.arange(count // at_once) * e2e_s, at_once)
        return replace(run(0, equal=True), sent_s=sent, e2e_s=np.full(count, e2e_s))

    assert len(matched(loop(2.0), loop(3.0))[0]) == count


def test_the_first_seconds_are_left_out_of_both() -> None:
    one = run(0)
    slow = replace(one, ttft_s=np.where(one.sent_s - one.sent_s[0] < 20, 9.0, 0.1), e2e_s=one.e2e_s + 9.0)
    assert calibrate(slow, one).errors[0].bias < -0.1
    skipped = calibrate(slow, one, skip_first_s=20.0)
    assert skipped.errors[0].bias == 0
    assert len(skipped.measured.request_id) == int((one.sent_s - one.sent_s[0] >= 20).sum())
    with pytest.raises(InputError, match="no request of both runs is left"):
        calibrate(one, one, skip_first_s=1e6)
