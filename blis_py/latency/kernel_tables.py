"""Step time from measured kernels: what each kernel of a step took, added up.

    step = operators(tokens) + attention(batch) + LM head and sampler(sequences) [+ MoE] [+ all-reduce]

The table of attention kernels was measured with one chunk and decodes of equal context. A step's
chunks are looked up as the one chunk with as many tokens and query-key pairs (fewer tokens where
several prompts have fewer pairs than one), its decodes at their mean context. Where the profile measured
what unequal contexts cost, attention moves from there towards its price at the longest context by the
profile's one coefficient. Kernels run back to back: host work is taken to be hidden behind them, as in
an engine that schedules asynchronously.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import StepFeatures
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.hardware import GpuSpec
from blis_py.latency.layer_profile import Curve, load_layer_profile
from blis_py.latency.model_shape import ModelShape
from blis_py.latency.roofline import distinct_experts

Array = NDArray[np.float64]


class KernelTables:
    """Prices steps from a folder of measured kernel times (`layer_profile`); see `LatencyModel`.

    With tensor parallelism the tables hold one rank's kernels, and the ring all-reduce comes from the
    datasheet's link bandwidth.
    """

    name = "kernel-tables"

    def __init__(self, shape: ModelShape, gpu: GpuSpec, tp: int, kernel_profile: str | Path) -> None:
        profile = load_layer_profile(kernel_profile, tp, shape.layers, shape.moe_layers)
        _check_model(profile.model, shape, kernel_profile)
        self.provenance = profile.source + (", all-reduce from the datasheet" if tp > 1 else "")
        self.frontend = FrontendDelays()
        self.uses_max_context = profile.skew > 0
        self._profile, self._shape, self._gpu, self._tp = profile, shape, gpu, tp
        self._token_cache: dict[int, float] = {}
        self._decode_cache: dict[int, tuple[list[float], list[float], list[float]]] = {}

    # --- parts ---------------------------------------------------------------------------------------

    def _tokens_ns(self, tokens: int) -> float:
        ns = self._token_cache.get(tokens)
        if ns is None:
            ns = _at(self._profile.tokens, tokens) + self._moe_ns(tokens) + self._all_reduce_ns(tokens)
            self._token_cache[tokens] = ns
        return ns

    def _moe_ns(self, tokens: int) -> float:
        if self._profile.moe is None:
            return 0.0
        tokens_axis, experts_axis, grid = self._profile.moe
        shape = self._shape
        active = distinct_experts(shape.experts, shape.experts_per_token, tokens)
        return _interpolate((tokens_axis, experts_axis), grid, (tokens, active))

    def _all_reduce_ns(self, tokens: int) -> float:
        if self._tp == 1:
            return 0.0
        gpu, shape, tp = self._gpu, self._shape, self._tp
        volume = tokens * shape.hidden * shape.dtype_bytes * 2 * (tp - 1) / tp
        link = gpu.link_bytes_per_s * gpu.link_efficiency / 1e9
        return 2 * shape.layers * (gpu.all_reduce_overhead_ns + volume / link)

    def _mixed_attention_ns(self, f: StepFeatures) -> float:
        chunk: float = f.prefill_tokens
        past = (f.prefill_pairs - chunk * (chunk + 1) / 2) / chunk
        if past < 0:  # several prompts, each attending only to itself
            chunk, past = (sqrt(1 + 8 * f.prefill_pairs) - 1) / 2, 0.0
        seqs, skew = f.decode_seqs, self._profile.skew
        if not seqs:
            return self._attention_ns(chunk, past, 0, 0)
        ns = self._attention_ns(chunk, past, seqs, f.decode_kv_tokens / seqs)
        return ns + skew * (self._attention_ns(chunk, past, seqs, f.max_context) - ns) if skew else ns

    def _attention_ns(self, chunk: float, past: float, seqs: int, context: float) -> float:
        return _interpolate(self._profile.axes, self._profile.attention, (chunk, past, seqs, context))

    def _decode_line(self, seqs: int) -> tuple[list[float], list[float], list[float]]:
        """Price of a pure decode step over Σ context: points, the price there, the slope after each."""
        line = self._decode_cache.get(seqs)
        if line is None:
            _, _, counts, contexts = self._profile.axes
            below, weight = _cell(counts, seqs)
            table = self._profile.attention[0, 0]
            attention = (1 - weight) * table[below] + weight * table[below + 1]
            at = contexts * seqs
            ns = attention + self._tokens_ns(seqs) + _at(self._profile.sequences, seqs)
            slopes = np.diff(ns) / np.diff(at)
            line = at[:-1].tolist(), ns[:-1].tolist(), slopes.tolist()
            self._decode_cache[seqs] = line
        return line

    # --- the interface -------------------------------------------------------------------------------

    def step_ns(self, features: StepFeatures) -> int:
        f = features
        if not f.prefill_seqs:
            if not f.decode_seqs:
                return max(int(self._tokens_ns(0)), 1)
            ns, skew = self._decode_ns(f.decode_seqs, f.decode_kv_tokens), self._profile.skew
            if skew:
                ns += skew * (self._decode_ns(f.decode_seqs, f.decode_seqs * f.max_context) - ns)
            return max(int(ns), 1)
        seqs = f.prefill_seqs + f.decode_seqs
        ns_in_all = self._tokens_ns(f.prefill_tokens + f.decode_seqs)
        ns_in_all += self._mixed_attention_ns(f) + _at(self._profile.sequences, seqs)
        return max(int(ns_in_all), 1)

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self.step_ns(features), 0)

    def decode_run_ns(self, features: StepFeatures, steps: int) -> Sequence[int]:
        seqs = features.decode_seqs
        grown = seqs * np.arange(steps, dtype=np.float64)
        ns, skew = self._decodes_ns(seqs, features.decode_kv_tokens + grown), self._profile.skew
        if skew:
            ns += skew * (self._decodes_ns(seqs, seqs * features.max_context + grown) - ns)
        ends: Sequence[int] = np.maximum(ns.astype(np.int64), 1).cumsum()  # type: ignore[assignment]
        return ends

    def _decode_ns(self, seqs: int, kv_tokens: int) -> float:
        at, ns, slopes = self._decode_line(seqs)
        i = bisect_right(at, kv_tokens) - 1
        return ns[i] + slopes[i] * (kv_tokens - at[i])

    def _decodes_ns(self, seqs: int, kv_tokens: Array) -> Array:
        """The same operations on an array."""
        at, ns, slopes = map(np.asarray, self._decode_line(seqs))
        i = np.searchsorted(at, kv_tokens, side="right") - 1
        prices: Array = ns[i] + slopes[i] * (kv_tokens - at[i])
        return prices


def _check_model(measured: str, shape: ModelShape, folder: str | Path) -> None:
    def plain(name: str) -> str:
        return "".join(c for c in name.rsplit("/", 1)[-1].lower() if c.isalnum())

    if plain(measured) != plain(shape.name):
        fix = f"use --model {measured}" if measured else "name the model in meta.yaml"
        raise InputError(
            f"was measured for another model than {shape.name}", file=folder, value=measured, fix=fix
        )


def _cell(axis: Array, value: float) -> tuple[int, float]:
    """The grid cell a value lies in (the last one if beyond), and how far into it."""
    i = min(max(int(np.searchsorted(axis, value, side="right")) - 1, 0), len(axis) - 2)
    return i, float((value - axis[i]) / (axis[i + 1] - axis[i]))


def _at(curve: Curve, value: float) -> float:
    if len(curve.at) == 1:
        return float(curve.ns[0])
    i, weight = _cell(curve.at, value)
    return float((1 - weight) * curve.ns[i] + weight * curve.ns[i + 1])


def _interpolate(axes: Sequence[Array], grid: Array, point: Sequence[float]) -> float:
    """Multilinear in a grid; beyond its edge along the last slope."""
    for axis, value in zip(axes, point, strict=True):
        i, weight = _cell(axis, value)
        grid = (1 - weight) * grid[i] + weight * grid[i + 1]
    return float(grid)
