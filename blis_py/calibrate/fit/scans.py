"""Cost of looking up waiting requests in the prefix cache, from steps with lookups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from blis_py.files.packages import scipy
from blis_py.traces.samples import StepSamples

QUEUED = "queued"
"""Source of the profile samples in which requests wait under a policy that looks them up."""
MIN_STEPS = 20
"""Minimum number of steps with lookups for a price."""


def scan_price_ns(samples: StepSamples) -> float | None:
    """Host time for each request that is looked up; None if there are too few steps.

    Scheduling is timed separately: its time is attributed to the lookups, prompts and decodes of the step,
    none with a negative price. Errors beyond the usual time count less, as they come from interruptions. Only
    sources with lookups count: elsewhere the rest of scheduling may cost differently.
    """
    scanning = np.unique(samples["source"][samples["scanned_requests"] > 0])
    samples = samples.where(np.isin(samples["source"], scanning))
    scanned = samples["scanned_requests"].astype(np.float64)
    if np.count_nonzero(scanned) < MIN_STEPS:
        return None
    took_ns = samples["schedule_ns"].astype(np.float64)
    others = (samples["prefill_seqs"], samples["decode_seqs"], np.ones(len(samples)))
    terms = np.stack([scanned, *others], axis=1).astype(np.float64)
    usual_ns = max(float(np.median(took_ns)), 1.0)
    most = np.maximum(terms.max(axis=0), 1.0)

    def off(shares: np.ndarray) -> np.ndarray:
        """Deviation relative to the usual time; a share is what the largest value of a term costs of it."""
        error: np.ndarray = terms @ (shares / most) - took_ns / usual_ns
        return error

    solution = scipy().optimize.least_squares(
        off, np.full(terms.shape[1], 0.5), bounds=(0, np.inf), loss="soft_l1"
    )
    return float(solution.x[0] / most[0] * usual_ns)


def without_scans(samples: StepSamples, scan_ns: float | None) -> StepSamples:
    """The samples minus the time of the lookups at this price."""
    if scan_ns is None:
        return samples
    scans_ns = np.rint(scan_ns * samples["scanned_requests"]).astype(np.int64)
    scans_ns = np.minimum(scans_ns, samples["schedule_ns"])
    shorter = {name: samples[name] - scans_ns for name in ("schedule_ns", "host_ns", "total_ns")}
    return replace(samples, table=samples.table | shorter)
