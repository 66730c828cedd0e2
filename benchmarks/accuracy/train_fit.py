"""Training of the `trained` latency model: non-negative least squares on relative errors.

A step's price is linear in the coefficients once it is known which side of each `max` is larger, so sides and
coefficients are determined in turn: choose the sides with the current coefficients, solve, and repeat until
nothing changes. Every group of measurements (one model on one GPU at one TP degree, from one source) has the
same total weight. The coefficients of kernels in 16 bits are learned first; then, on top of them, those of
8-bit formats, on quantised models, so that these change nothing for models in 16 bits; and last the host's,
which kernels cannot show, on real steps and on client measurements of real runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import StepFeatures
from blis_py.latency.trained import COEFFICIENT_NAMES, TILE_KEYS, TILE_ROWS, Basis, Coefficients, Product

Array = NDArray[np.float64]

DIGITS = 4
"""Significant digits kept: far finer than the errors, far coarser than the differences between machines."""
_NOTHING = 1e-6
"""Below this a coefficient is the remainder of repeated halving."""
_ROUNDS = 60
_START = Coefficients(
    matmul_arithmetic=1.3,
    traffic=1.1,
    unhidden_arithmetic=0.5,
    sparse_arithmetic=1.7,
    sparse_unhidden=1.0,
    narrow_arithmetic=1.6,
    narrow_traffic=1.2,
    narrow_unhidden=0.5,
    attention_pairs=2.0,
    kv_traffic=1.1,
    narrow_kv_traffic=1.5,
    mixed_decode_tiles=1.5,
    all_reduce_latency=0.7,
    all_reduce_traffic=1.5,
    layer_ns=4e4,
    sparse_layer_ns=2e4,
    narrow_layer_ns=1e4,
    host_step_ns=1e5,
    host_seq_ns=1e3,
    rank_wait_ns=1e3,
)
"""Used only for the first choice of sides."""
_HOST = ("host_step_ns", "host_seq_ns", "rank_wait_ns")
_PLACE = {name: i for i, name in enumerate(COEFFICIENT_NAMES)}
_MAX_CHOICES = 6
"""Matrix products (projections, dense and sparse FFN, LM head) and the two kinds of attention."""


@dataclass(frozen=True)
class SampleGroup:
    """Step times of one model on one GPU at one TP degree, from one source."""

    source: str
    model: str
    gpu: str
    """Name of the GPU's profile."""
    tp: int
    basis: Basis
    steps: Sequence[StepFeatures]
    ns: Array
    with_host: bool = False
    """Whether the times include the engine's host work (steps) or not (sums of kernels)."""
    part: Literal["step", "decode attention"] = "step"
    """The timed part: the whole step, or only the decodes' addition to the attention."""
    quantised: bool = False
    """8-bit weights, activations and KV cache; otherwise 16-bit ones."""
    relative_to: Array | None = None
    """Reference of errors in ns; the times themselves if absent."""


@dataclass(frozen=True)
class ServedRun:
    """The mean TPOT of a real run as a function of host and waiting ranks, to first order."""

    name: str
    model: str
    gpu: str
    basis: Basis
    tpot_ns: float
    kernels_ns: float
    """Prediction from kernels alone."""
    growth: float
    """Derivative of TPOT with respect to the length of every step."""
    seqs: float
    """Mean number of sequences in a step."""


@dataclass(frozen=True)
class Design:
    """Price = alone @ c + sum over choices of max(left @ c, right @ c), c being the coefficients."""

    alone: Array
    """(steps, coefficients)"""
    left: Array
    """(choices, steps, coefficients)"""
    right: Array
    ns: Array
    relative_to: Array
    weight: Array
    """Per step; sums to 1 within a group."""

    def price(self, c: Array) -> Array:
        larger: Array = np.maximum(self.left @ c, self.right @ c).sum(axis=0)
        return self.alone @ c + larger

    def error(self, c: Array) -> float:
        """Weighted sum of squared relative errors."""
        return float(self.weight @ ((self.price(c) - self.ns) / self.relative_to) ** 2)


def design(groups: Sequence[SampleGroup]) -> Design:
    """Rows of all groups, in order."""
    rows = [_row(group, f) for group in groups for f in group.steps]
    alone, left, right = (np.stack(part) for part in zip(*rows, strict=True))
    weight = np.concatenate([np.full(len(group.ns), 1 / len(group.ns)) for group in groups])
    ns = np.concatenate([group.ns for group in groups])
    against = [group.ns if group.relative_to is None else group.relative_to for group in groups]
    return Design(alone, left.swapaxes(0, 1), right.swapaxes(0, 1), ns, np.concatenate(against), weight)


def train(groups: Sequence[SampleGroup], runs: Sequence[ServedRun] = ()) -> Coefficients:
    """Coefficients of minimal weighted squared relative error, rounded to `DIGITS` significant digits.

    First those of 16-bit models, on these alone; then, on quantised ones, the 8-bit ones; then the host's, on
    steps that include it and on runs. Coefficients without data (the all-reduce if every TP degree is 1, the
    host without engine steps) are 0.
    """
    kernels = [group for group in groups if not group.with_host]
    plain = [group for group in kernels if not group.quantised]
    narrow = [group for group in kernels if group.quantised]
    theirs = np.array([name.startswith("narrow_") for name in COEFFICIENT_NAMES])
    host = np.array([name in _HOST for name in COEFFICIENT_NAMES])
    start = np.array([getattr(_START, name) for name in COEFFICIENT_NAMES])
    c = _rounded(_fit(plain, np.where(theirs | host, 0.0, start), ~(theirs | host)))
    if narrow:
        c = _rounded(_fit(narrow, np.where(theirs, start, c), theirs))
    steps = [group for group in groups if group.with_host]
    if steps or runs:
        c[host] = _rounded(_host(steps, runs, c))
    return Coefficients(*c.tolist())


def _host(steps: Sequence[SampleGroup], runs: Sequence[ServedRun], c: Array) -> Array:
    """The coefficients `_HOST`, with all others fixed; every group of steps and every run has the same
    weight."""
    from scipy.optimize import nnls

    columns, left = [], []
    for group in steps:
        weight = 1 / (np.sqrt(len(group.ns)) * group.ns)
        seqs = np.array([f.seqs for f in group.steps], dtype=float)
        waits = np.array([group.basis.waits(f.tokens) for f in group.steps], dtype=float)
        terms = np.stack([np.ones(len(seqs)), seqs, waits], axis=1)
        columns.append(terms * weight[:, None])
        left.append((group.ns - design([group]).price(c)) * weight)
    for run in runs:
        terms = np.array([[1.0, run.seqs, float(run.basis.waits(round(run.seqs)))]])
        columns.append(terms * run.growth / run.tpot_ns)
        left.append(np.array([run.tpot_ns - run.kernels_ns]) / run.tpot_ns)
    rows, target_ns = np.concatenate(columns), np.concatenate(left)
    size = np.linalg.norm(rows, axis=0)
    size[size == 0] = 1.0
    coefficients: Array = nnls(rows / size, target_ns)[0] / size
    return coefficients


def _fit(groups: Sequence[SampleGroup], c: Array, free: NDArray[np.bool_]) -> Array:
    """Fit the coefficients `free`; the others stay fixed."""
    from scipy.optimize import nnls

    data = design(groups)
    scale = np.sqrt(data.weight) / data.relative_to
    shown = (data.alone.any(axis=0)) | data.left.any(axis=(0, 1)) | data.right.any(axis=(0, 1))
    c = best = np.where(shown | ~free, c, 0.0)
    for _ in range(_ROUNDS):
        chosen = np.where((data.left @ c > data.right @ c)[..., None], data.left, data.right)
        columns = data.alone + chosen.sum(axis=0)
        left_ns = data.ns - columns[:, ~free] @ c[~free]
        columns = columns * scale[:, None]
        size = np.linalg.norm(columns, axis=0)
        used = free & (size > 0)  # sides that were never chosen carry no information on their coefficients
        updated = c.copy()
        updated[used] = nnls(columns[:, used] / size[used], left_ns * scale)[0] / size[used]
        c = (c + updated) / 2  # half way: full steps oscillate between sets of sides that imply each other
        best = min(best, c, updated, key=data.error)
    return best


def _rounded(values: Array) -> Array:
    return np.array([float(f"{value:.{DIGITS}g}") if value > _NOTHING else 0.0 for value in values])


def predict(group: SampleGroup, coefficients: Coefficients) -> Array:
    """Price of a group's steps in ns; with the host only if its times include it."""
    return design([group]).price(np.array([getattr(coefficients, name) for name in COEFFICIENT_NAMES]))


# --- one step ----------------------------------------------------------------------------------------


def _row(group: SampleGroup, f: StepFeatures) -> tuple[Array, Array, Array]:
    """alone, left and right of one step; mirrors `latency.trained`."""
    basis = group.basis
    alone = _vector(
        traffic=basis.elementwise_ns(f.tokens) + basis.sampling_ns(f.emitted_rows),
        all_reduce_latency=basis.all_reduce_latency_ns(f.tokens),
        all_reduce_traffic=basis.all_reduce_ns(f.tokens),
        layer_ns=basis.shape.layers,
        sparse_layer_ns=basis.shape.moe_layers,
        narrow_layer_ns=basis.narrow_layers,
        host_step_ns=1.0 if group.with_host else 0.0,
        host_seq_ns=f.seqs if group.with_host else 0.0,
        rank_wait_ns=basis.waits(f.tokens) if group.with_host else 0.0,
    )
    choices = [_product(product) for product in (*basis.products(f.tokens), basis.head(f.emitted_rows))]
    kv_traffic = "narrow_kv_traffic" if basis.narrow_kv else "kv_traffic"
    kv_tokens = f.prefill_kv_tokens + 2 * f.prefill_tokens
    prefill = _vector(attention_pairs=basis.pair_ns * f.prefill_pairs)
    choices.append((prefill, _vector(**{kv_traffic: basis.kv_ns * kv_tokens})))
    if f.prefill_seqs and not basis.packed_attention:
        pairs = TILE_ROWS * (f.decode_kv_tokens + TILE_KEYS * f.decode_seqs)
        decode = _vector(mixed_decode_tiles=basis.pair_ns * pairs)
    else:
        decode = _vector(attention_pairs=basis.pair_ns * (f.decode_kv_tokens + f.decode_seqs))
    decode_kv_tokens = f.decode_kv_tokens + 2 * f.decode_seqs
    choices.append((decode, _vector(**{kv_traffic: basis.kv_ns * decode_kv_tokens})))
    if group.part == "decode attention":
        alone, choices = _vector(), choices[-1:]
    choices += [(_vector(), _vector())] * (_MAX_CHOICES - len(choices))
    left, right = zip(*choices, strict=True)
    return alone, np.stack(left), np.stack(right)


def _product(product: Product) -> tuple[Array, Array]:
    arithmetic, traffic, kind = product
    if kind == "narrow":
        moved = _vector(narrow_traffic=traffic, narrow_unhidden=arithmetic)
        return _vector(narrow_arithmetic=arithmetic), moved
    if kind == "sparse":
        moved = _vector(traffic=traffic, sparse_unhidden=arithmetic)
        return _vector(sparse_arithmetic=arithmetic), moved
    return _vector(matmul_arithmetic=arithmetic), _vector(traffic=traffic, unhidden_arithmetic=arithmetic)


def _vector(**terms: float) -> Array:
    vector = np.zeros(len(COEFFICIENT_NAMES))
    for name, value in terms.items():
        vector[_PLACE[name]] = value
    return vector
