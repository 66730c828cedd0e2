"""What reading shared pages again saves is learned from compositions with and without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_py.calibrate.fit.sharing import SHARED, repeated_read_ns
from blis_py.latency.fitted_profile import FittedProfile, RegimeFit, read_profile, write_profile
from blis_py.traces.samples import StepSamples, samples_from

REGIMES = {"eager": RegimeFit(gpu={"decode_kv_tokens": 300.0, "padded_kv_tokens": 100.0}, host={})}


def measured(saved_ns: float, machine: float = 1.0) -> StepSamples:
    """Two batches, each sharing nothing, half and nearly all of its contexts; three visits to each."""
    rows: list[dict[str, Any]] = []
    for seqs, context in ((4, 1000), (16, 500)):
        for part in (0, 240, 480):
            again = (seqs - 1) * part
            took = machine * (5e6 + 400.0 * seqs * context) - saved_ns * again
            for repetition, off in enumerate((-1000, 0, 7000)):
                rows.append(
                    {
                        "shape": len(rows) // 3,
                        "repetition": repetition,
                        "decode_seqs": seqs,
                        "decode_kv_tokens": seqs * context,
                        "shared_kv_tokens": again,
                        "gpu_ns": took + off,
                        "total_ns": took + off + 1e5,
                        "source": SHARED,
                        "regime": "eager",
                    }
                )
    return samples_from({}, {name: np.array([row[name] for row in rows]) for name in rows[0]}, len(rows))


@pytest.mark.parametrize("machine", [0.8, 1.0, 1.3])
def test_it_is_the_difference_to_the_same_batch_without_sharing(machine: float) -> None:
    """However wrong prices are about both."""
    assert repeated_read_ns(measured(120.0, machine), REGIMES) == pytest.approx(120.0, rel=1e-6)


def test_it_is_neither_negative_nor_more_than_reading_costs() -> None:
    assert repeated_read_ns(measured(-50.0), REGIMES) == 0.0
    assert repeated_read_ns(measured(900.0), REGIMES) == 400.0


def test_without_twins_nothing_is_learned() -> None:
    samples = measured(120.0)
    assert repeated_read_ns(samples.where(samples["shared_kv_tokens"] > 0), REGIMES) == 0.0
    assert repeated_read_ns(samples.where(np.zeros(len(samples), dtype=np.bool_)), REGIMES) == 0.0


def test_a_profile_keeps_it(tmp_path: Path) -> None:
    for saved_ns in (0.0, 12.5):
        write_profile(tmp_path, {}, FittedProfile({}, REGIMES, repeated_read_ns=saved_ns))
        assert read_profile(tmp_path).repeated_read_ns == saved_ns
