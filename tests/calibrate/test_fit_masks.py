"""What masks of structured outputs cost is learned from steps that had them, and from nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fit_cases import made_up
from test_samples import log_of

from blis_py.calibrate.fit import fit, write_profile
from blis_py.calibrate.fit.masks import mask_prices
from blis_py.latency.fitted_profile import read_profile
from blis_py.traces.samples import StepSamples, read_samples, samples_of, write_samples


def with_masks(samples: StepSamples, row_ns: float, step_ns: float, noise: float = 0.0) -> StepSamples:
    rng = np.random.default_rng(0)
    rows = np.minimum(rng.integers(0, 5, len(samples)), samples["emitted_rows"])
    took = (rows > 0) * (step_ns + row_ns * rows) * np.exp(noise * rng.standard_normal(len(samples)))
    table = samples.table | {"constrained_rows": rows, "mask_ns": np.rint(took).astype(np.int64)}
    return replace(samples, table=table)


@pytest.mark.slow
def test_known_prices_are_found_again_and_change_no_other() -> None:
    plain = fit(made_up(), bootstrap=0)
    found = fit(with_masks(made_up(), 3_000, 20_000), bootstrap=0)
    assert found.masks is not None
    assert (found.masks.row_ns, found.masks.step_ns) == pytest.approx((3_000, 20_000), rel=0.001)
    assert (plain.masks, replace(found, masks=None)) == (None, plain)


def test_all_of_the_measured_time_is_in_the_prices_however_uneven_it_is() -> None:
    samples = with_masks(made_up(), 3_000, 20_000, noise=1.0)
    masks = mask_prices(samples)
    assert masks is not None
    rows = samples["constrained_rows"]
    report = sum(masks.of(count) for count in rows.tolist())
    assert report == pytest.approx(samples["mask_ns"].sum(), rel=1e-3)


def test_with_one_number_of_rows_row_and_step_are_not_separable() -> None:
    samples = made_up()
    one = {"constrained_rows": np.ones(len(samples), np.int64), "mask_ns": np.full(len(samples), 7_000)}
    masks = mask_prices(replace(samples, table=samples.table | one))
    assert masks is not None
    assert (masks.row_ns, masks.step_ns) == pytest.approx((7_000, 0))


def test_they_are_kept_in_the_profile_and_samples_in_their_file(tmp_path: Path) -> None:
    samples = with_masks(made_up(), 3_000, 20_000)
    write_samples(samples, tmp_path / "samples.csv.gz")
    again = read_samples(tmp_path / "samples.csv.gz")
    assert (again["mask_ns"] == samples["mask_ns"]).all()
    profile = fit(again, bootstrap=0)
    write_profile(tmp_path, samples.meta, profile)
    masks = read_profile(tmp_path).masks
    assert masks is not None
    assert (masks.row_ns, masks.step_ns) == pytest.approx((3_000, 20_000), rel=0.001)


def test_what_masks_added_to_a_recorded_step_is_taken_out_of_its_other_times() -> None:
    columns = {"gpu_ns": [6, 6], "constrained_rows": [0, 2], "mask_ns": [0, 5], "mask_exposed_ns": [0, 4]}
    samples = samples_of(log_of([(0, 10), (13, 20)], [(0, 30)], **columns), "run")
    assert samples["gpu_ns"].tolist() == [6, 2]
    assert samples["total_ns"].tolist() == [13, 3]
    assert samples["host_ns"].tolist() == [7, 1]
    assert samples["mask_ns"].tolist() == [0, 5]
