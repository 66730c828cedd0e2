"""The host's time between two batches of diffusion rounds is separated from that of a round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from blis_py.calibrate.fit import fit
from blis_py.calibrate.fit.accuracy import predict
from blis_py.latency.fitted import Fitted
from blis_py.traces.samples import StepSamples, samples_from

META = {"device": "cpu", "device_kind": "cpu"}
BATCH_NS, BLOCK_NS = 400_000, 20_000


def rounds(per_batch: int, within_ns: int = 5_000, count: int = 240) -> StepSamples:
    """Batches of so many rounds; the host works between batches, and next to nothing within."""
    index = np.arange(count)
    begins, blocks = (index % per_batch == 0) * 1, 1 + index // per_batch % 8
    gpu_ns = 2_000_000 + 300_000 * blocks
    host_ns = np.where(begins, BATCH_NS + BLOCK_NS * blocks, within_ns)
    columns: dict[str, Any] = {
        "source": ["run"] * count,
        "regime": ["eager"] * count,
        "shape": index,
        "prefill_seqs": blocks,
        "prefill_tokens": 32 * blocks,
        "denoise_blocks": blocks,
        "begins_batch": begins,
        "gpu_ns": gpu_ns,
        "total_ns": gpu_ns + host_ns,
    }
    return samples_from(META, columns, count)


def test_known_prices_are_found_again() -> None:
    host = fit(rounds(6), bootstrap=0).regimes["eager"].host
    assert host["begins_batch"] + host["step"] == pytest.approx(BATCH_NS + 4 * BLOCK_NS, rel=0.2)
    assert host["step"] < 0.1 * BATCH_NS


def test_batches_of_another_length_are_priced_right() -> None:
    """As when the mode is another: synchronous batches are longer than those of FDFO."""
    model, longer = Fitted(fit(rounds(4), bootstrap=0)), rounds(15)
    assert predict(model, longer)[1].sum() == pytest.approx(longer["host_ns"].sum(), rel=0.2)


def test_rounds_with_no_host_time_at_all_do_not_hide_that_of_the_others() -> None:
    host = fit(rounds(6, within_ns=0), bootstrap=0).regimes["eager"].host
    assert host["begins_batch"] > 0.8 * BATCH_NS
