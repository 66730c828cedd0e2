"""What it costs to look waiting requests up in the cache is learned from steps in which that was done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fit_cases import gpu_price, made_up

from blis_py.calibrate.fit import fit, write_profile
from blis_py.calibrate.fit.accuracy import validate
from blis_py.calibrate.fit.scans import QUEUED, scan_price_ns
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import read_profile
from blis_py.latency.host_work import WithHostWork
from blis_py.report.fitted import profile_data, profile_lines
from blis_py.traces.samples import StepSamples, joined, read_samples, write_samples

SCHEDULE_NS = 30_000


def with_scans(samples: StepSamples, scan_ns: float, noise: float = 0.0, seed: int = 0) -> StepSamples:
    """Every second step looks up to a hundred requests up; scheduling takes the host some time anyway."""
    rng = np.random.default_rng(seed)
    scanned = rng.integers(0, 101, len(samples)) * (np.arange(len(samples)) % 2)
    took = np.rint(scan_ns * scanned * np.exp(noise * rng.standard_normal(len(samples)))).astype(np.int64)
    longer = {name: samples[name] + took for name in ("host_ns", "total_ns")}
    more = {"scanned_requests": scanned, "schedule_ns": SCHEDULE_NS + took}
    return replace(samples, table=samples.table | longer | more)


@pytest.mark.slow
@pytest.mark.parametrize("scan_ns", [0.0, 700.0, 2_000.0])
def test_the_known_price_is_found_again_and_changes_no_other(scan_ns: float) -> None:
    found = fit(with_scans(made_up(), scan_ns), bootstrap=0)
    assert found.scan_ns == pytest.approx(scan_ns, rel=0.01, abs=2)
    plain = fit(made_up(), bootstrap=0)
    for name, price in plain.regimes["eager"].host.items():
        assert found.regimes["eager"].host[name] == pytest.approx(price, rel=0.01)
    assert plain.scan_ns is None


def test_what_broke_in_on_a_few_steps_is_not_taken_for_scans() -> None:
    samples = with_scans(made_up(), 1_500.0, noise=0.2)
    late = samples["schedule_ns"].copy()
    late[samples["scanned_requests"].argsort()[-3:]] += 20_000_000
    broken = replace(samples, table=samples.table | {"schedule_ns": late})
    assert scan_price_ns(broken) == pytest.approx(1_500.0, rel=0.1)


def test_without_cache_lookups_scheduling_may_take_any_time() -> None:
    """As in the prompts of a profile, which are cut into blocks while they are scheduled."""
    scanning = with_scans(made_up(source="queued"), 900.0)
    prompts = made_up(source="prefill", seed=1)
    slow = prompts.table | {"schedule_ns": 40_000 * prompts["prefill_tokens"]}
    together = joined([scanning, replace(prompts, table=slow)])
    assert scan_price_ns(together) == pytest.approx(900.0, rel=0.01)


@pytest.mark.slow
def test_queues_of_a_profile_teach_that_price_and_no_other() -> None:
    grid = made_up()
    queued = with_scans(made_up(source=QUEUED, seed=1, price=lambda c: 9 * gpu_price(c)), 900.0)
    found, plain = (fit(samples, bootstrap=0) for samples in (joined([grid, queued]), grid))
    assert found.scan_ns == pytest.approx(900.0, rel=0.01)
    assert found.regimes == plain.regimes


def test_few_steps_with_scans_make_no_price() -> None:
    samples = with_scans(made_up(), 1_500.0)
    assert scan_price_ns(samples.where(np.flatnonzero(samples["scanned_requests"])[:10])) is None


def test_steps_of_another_run_are_priced_better_with_them() -> None:
    profile = fit(with_scans(made_up(), 3_000.0), bootstrap=0)
    assert profile.scan_ns is not None
    other = with_scans(made_up(seed=1), 3_000.0, noise=0.3, seed=1)
    model = Fitted(profile)
    priced = WithHostWork(model, scan_ns=profile.scan_ns)
    errors = [validate(each, other)[-1].host.mape for each in (model, priced)]
    assert errors[1] < 0.5 * errors[0]


def test_samples_and_profile_keep_them(tmp_path: Path) -> None:
    samples = with_scans(made_up(), 700.0)
    write_samples(samples, tmp_path / "samples.csv.gz")
    again = read_samples(tmp_path / "samples.csv.gz")
    assert (again["scanned_requests"] == samples["scanned_requests"]).all()
    write_profile(tmp_path, samples.meta, fit(again, bootstrap=0))
    profile = read_profile(tmp_path)
    assert profile.scan_ns == pytest.approx(700.0, rel=0.01)
    lines = [line for line in profile_lines(profile) if line.startswith("scans: ")]
    assert lines == [f"scans: {profile.scan_ns:,.6g} ns for each waiting request looked up in the cache"]
    assert profile_data(profile)["scan_ns"] == profile.scan_ns
