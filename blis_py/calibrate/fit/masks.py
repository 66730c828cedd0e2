"""What the masks of structured outputs cost, from steps that had them."""

from __future__ import annotations

import numpy as np
from scipy.optimize import nnls

from blis_py.latency.host_work import MaskPrices
from blis_py.traces.samples import StepSamples


def mask_prices(samples: StepSamples) -> MaskPrices | None:
    """Prices whose sum is what the measured masks took in all; None where no row was constrained.

    Least squares over the steps, none negative. A mask is cheap but where a grammar makes xgrammar try tokens
    one by one; means have that in them, medians would not. So the prices are those of the grammars that were
    measured.
    """
    rows = samples["constrained_rows"].astype(np.float64)
    took_ns = samples["mask_ns"].astype(np.float64)[rows > 0]
    rows = rows[rows > 0]
    if not len(rows):
        return None
    several = len(np.unique(rows)) > 1  # else nothing tells the two apart
    terms = np.stack([rows, np.ones_like(rows)], axis=1) if several else rows[:, None]
    prices = nnls(terms, took_ns)[0]
    modelled = float((terms @ prices).sum())
    scale = float(took_ns.sum()) / modelled if modelled else 0.0
    row_ns, step_ns = (scale * prices).tolist() if several else (scale * prices[0], 0.0)
    return MaskPrices(float(row_ns), float(step_ns))
