"""Step time from measured kernels: what each kernel of a step took, added up.

    step = operators(tokens) + attention(batch) + LM head and sampler(sequences)

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

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.hardware import GpuSpec
from blis_py.latency.kernel_profile import Array, cell, interpolate, load_kernel_profile, value_at
from blis_py.latency.model_shape import ModelShape


class KernelTables:
    """Prices steps from a folder of measured kernel times (`kernel_profile`); see `LatencyModel`."""

    name = "kernel-tables"

    def __init__(self, shape: ModelShape, gpu: GpuSpec, tp: int, kernel_profile: str | Path) -> None:
        profile = load_kernel_profile(kernel_profile, shape, gpu, tp)
        self.provenance = profile.source
        self.frontend = FrontendDelays()
        self.uses_max_context = profile.skew > 0
        self._profile = profile
        self._token_cache: dict[int, float] = {}
        self._decode_cache: dict[int, tuple[list[float], list[float], list[float]]] = {}

    # --- parts ---------------------------------------------------------------------------------------

    def _tokens_ns(self, tokens: int) -> float:
        ns = self._token_cache.get(tokens)
        if ns is None:
            ns = value_at(self._profile.tokens, tokens)
            self._token_cache[tokens] = ns
        return ns

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
        return interpolate(self._profile.axes, self._profile.attention, (chunk, past, seqs, context))

    def _decode_line(self, seqs: int) -> tuple[list[float], list[float], list[float]]:
        """Price of a pure decode step over Σ context: points, the price there, the slope after each."""
        line = self._decode_cache.get(seqs)
        if line is None:
            _, _, counts, contexts = self._profile.axes
            below, weight = cell(counts, seqs)
            table = self._profile.attention[0, 0]
            attention = (1 - weight) * table[below] + weight * table[below + 1]
            at = contexts * seqs
            ns = attention + self._tokens_ns(seqs) + value_at(self._profile.sequences, seqs)
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
        ns_in_all += self._mixed_attention_ns(f) + value_at(self._profile.sequences, seqs)
        return max(int(ns_in_all), 1)

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self.step_ns(features), 0)

    def decode_run_ns(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> Sequence[int]:
        seqs = features.decode_seqs
        grown = seqs * np.arange(steps, dtype=np.float64)
        ns, skew = self._decodes_ns(seqs, features.decode_kv_tokens + grown), self._profile.skew
        if skew:
            ns += skew * (self._decodes_ns(seqs, seqs * features.max_context + grown) - ns)
        whole = np.maximum(ns.astype(np.int64), 1)
        whole[0] += start_ns
        ends: Sequence[int] = whole.cumsum()  # type: ignore[assignment]
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
