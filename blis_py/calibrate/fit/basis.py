"""Measured steps as columns of the physical basis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import FEATURE_NAMES, is_whole
from blis_py.latency.fitted import expected_experts
from blis_py.latency.fitted_terms import GPU_TERMS, HOST_TERMS, TERMS, StepPoint
from blis_py.latency.windowed_reads import windowed_reads
from blis_py.models.model_shape import ModelShape
from blis_py.traces.samples import KIND_NAMES, StepSamples, joined, medians

Array = NDArray[np.float64]

_RUN_STEPS = 50
"""Steps of a run that are left out together, since neighbours are nearly identical."""
_RUN_PARTS = 20
"""A short run is cut into this many parts at least."""
_DOMAIN = tuple(name for name in (*FEATURE_NAMES, *KIND_NAMES) if is_whole(name))


@dataclass(frozen=True)
class Rows:
    """Measured compositions, one per row."""

    samples: StepSamples
    """One row per shape: medians of its repetitions."""
    point: StepPoint
    """Columns; `knee` is set by the search for it."""
    gpu_ns: Array
    host_ns: Array
    group: NDArray[np.int64]
    """Group of each row; groups are left out, or drawn, as a whole."""

    def __len__(self) -> int:
        return len(self.gpu_ns)

    @property
    def launch_bound(self) -> NDArray[np.bool_]:
        """Rows whose `gpu_ns` is the launch time, an upper bound of the GPU's own."""
        bound: NDArray[np.bool_] = self.samples["launch_bound"] > 0
        return bound

    @property
    def launching_ns(self) -> Array:
        """Host time of launching beside the GPU's work; 0 = not known."""
        launching: Array = self.samples["launching_ns"].astype(np.float64)
        return launching

    @property
    def total_ns(self) -> Array:
        total: Array = self.gpu_ns + self.host_ns
        return total

    def where(self, keep: NDArray[np.bool_]) -> Rows:
        """A subset of the rows."""
        point = StepPoint()
        for name in StepPoint.__slots__:
            value = getattr(self.point, name, None)
            setattr(point, name, value[keep] if isinstance(value, np.ndarray) else value)
        return Rows(self.samples.where(keep), point, self.gpu_ns[keep], self.host_ns[keep], self.group[keep])


def one_row_per_shape(samples: StepSamples) -> StepSamples:
    """Medians over repetitions; steps of a run, which have none, are unchanged."""
    key = np.stack(
        [np.unique(samples[name], return_inverse=True)[1] for name in ("source", "shape", "regime")]
    )
    _, inverse, counts = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    single = counts[inverse.reshape(-1)] == 1
    if single.all():
        return samples
    return joined([medians(samples.where(~single)), samples.where(single)], samples.meta)


def rows_of(samples: StepSamples, shape: ModelShape | None, experts_in_use: float = 0.0) -> Rows:
    """Columns of the basis for the steps of one regime.

    Args:
        samples: one row per shape.
        shape: of the model, for the number of experts a batch reads if they were not counted.
    """
    c = {
        name: samples[name].astype(np.float64)
        for name in (*FEATURE_NAMES, *KIND_NAMES, "bucket", "active_experts", "gpu_ns", "host_ns")
    }
    x = StepPoint()
    computed = c["prefill_tokens"] + c["decode_seqs"]
    blocks = c["denoise_blocks"]
    per_block = np.where(blocks > 0, c["prefill_tokens"] // np.maximum(blocks, 1), 1)
    x.tokens = np.where(c["bucket"] > 0, c["bucket"] * per_block, computed)
    x.seqs = c["prefill_seqs"] + c["decode_seqs"]
    x.attended = c["decode_seqs"] + blocks
    x.decode_kv_tokens = c["decode_kv_tokens"]
    x.max_context = np.maximum(c["max_context"], 0.0)
    x.prefill_seqs = c["prefill_seqs"] - blocks
    for name in ("prefill_tokens", "prefill_pairs", "prefill_kv_tokens", "emitted_rows"):
        setattr(x, name, c[name])
    reads = windowed_reads(samples.meta, shape)
    if reads is not None:
        names = ("prefill_seqs", "prefill_tokens", "prefill_pairs", "prefill_kv_tokens")
        x.decode_kv_tokens = reads.decode_kv_tokens(c["decode_kv_tokens"], c["decode_seqs"])
        x.prefill_pairs, x.prefill_kv_tokens = reads.prefill(*(c[name] for name in names))
    x.begins_batch = c["begins_batch"]
    x.active_experts = _experts(c["active_experts"], x.tokens, shape, experts_in_use)
    x.knee = 0
    return Rows(samples, x, c["gpu_ns"], np.maximum(c["host_ns"], 0.0), groups(samples))


def _experts(counted: Array, tokens: Array, shape: ModelShape | None, in_use: float) -> Array:
    if shape is None or not shape.is_moe:
        return np.zeros_like(tokens)
    expected = np.array([expected_experts(shape, int(count), in_use) for count in tokens])
    return np.where(counted >= 0, counted, expected)


def experts_in_use(samples: StepSamples, shape: ModelShape | None) -> float:
    """Effective number of evenly routed experts in the measured steps; 0 if they were not counted."""
    counted = (samples["active_experts"] > 0) & (samples["source"] != "experts") & (samples["bucket"] == 0)
    if shape is None or not shape.is_moe or not counted.any():
        return 0.0
    tokens = samples["prefill_tokens"][counted] + samples["decode_seqs"][counted]
    active = samples["active_experts"][counted].astype(np.float64)
    tries = np.linspace(shape.experts_per_token, shape.experts, 101)
    loss = [
        np.mean((np.array([expected_experts(shape, int(t), n) for t in tokens]) / active - 1) ** 2)
        for n in tries
    ]
    return float(tries[int(np.argmin(loss))])


def groups(samples: StepSamples) -> NDArray[np.int64]:
    """Group of each step: a shape, or a stretch of a run."""
    labels = np.zeros(len(samples), dtype=np.int64)
    used = 0
    for source in dict.fromkeys(samples["source"].tolist()):
        mine = np.flatnonzero(samples["source"] == source)
        shapes = samples["shape"][mine]
        own = np.unique(shapes, return_inverse=True)[1]
        if samples["repetition"][mine].max() == 0:  # a run
            own = np.arange(len(mine)) // min(max(len(mine) // _RUN_PARTS, 1), _RUN_STEPS)
        labels[mine] = used + own
        used += int(own.max()) + 1
    return labels


def gpu_names(rows: Rows, device_kind: str) -> tuple[str, ...]:
    """GPU terms that are non-zero in the measured steps."""
    terms = GPU_TERMS.get(device_kind, GPU_TERMS["cuda"])
    return _present(rows, terms)


def host_names(rows: Rows) -> tuple[str, ...]:
    """Host terms that are non-zero in the measured steps."""
    return _present(rows, HOST_TERMS)


def _present(rows: Rows, terms: Sequence[str]) -> tuple[str, ...]:
    knee, rows.point.knee = rows.point.knee, 0
    kept = tuple(name for name in terms if np.any(TERMS[name](rows.point)))
    rows.point.knee = knee
    return kept


def design(rows: Rows, names: Sequence[str]) -> Array:
    """`[rows, terms]`: the amount of each term in each step."""
    columns: list[Any] = [np.broadcast_to(TERMS[name](rows.point), len(rows)) for name in names]
    return np.stack(columns, axis=1).astype(np.float64)


def domain(samples: StepSamples) -> dict[str, tuple[int, int]]:
    """Smallest and largest value of each feature. An unrecorded longest context is left out."""
    limits = {name: (int(samples[name].min()), int(samples[name].max())) for name in _DOMAIN}
    if limits["max_context"][1] <= 0 < limits["decode_kv_tokens"][1]:
        del limits["max_context"]
    return limits
