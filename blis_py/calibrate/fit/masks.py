"""Cost of the masks of structured outputs, from steps that had them."""

from __future__ import annotations

import numpy as np

from blis_py.files.packages import scipy
from blis_py.latency.host_work import MaskPrices
from blis_py.traces.samples import StepSamples


def mask_prices(samples: StepSamples) -> MaskPrices | None:
    """Prices whose sum is the total time of the measured masks; None if no row was constrained.

    Least squares over the steps, none negative. A mask is cheap unless a grammar makes xgrammar try tokens
    one by one; means include that, medians would not. So the prices are those of the measured grammars.
    """
    rows = samples["constrained_rows"].astype(np.float64)
    took_ns = samples["mask_ns"].astype(np.float64)[rows > 0]
    rows = rows[rows > 0]
    if not len(rows):
        return None
    several = len(np.unique(rows)) > 1  # otherwise the two cannot be separated
    terms = np.stack([rows, np.ones_like(rows)], axis=1) if several else rows[:, None]
    prices = scipy().optimize.nnls(terms, took_ns)[0]
    modelled = float((terms @ prices).sum())
    scale = float(took_ns.sum()) / modelled if modelled else 0.0
    row_ns, step_ns = (scale * prices).tolist() if several else (scale * prices[0], 0.0)
    return MaskPrices(float(row_ns), float(step_ns))
