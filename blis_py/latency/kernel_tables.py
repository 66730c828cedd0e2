"""Step time from measured kernels: the sum of the times of a step's kernels.

    step = operators(tokens) + attention(batch) + LM head and sampler(sequences)

The table of attention kernels was measured with one chunk and decodes of equal context. A step's chunks are
looked up as the one chunk with as many tokens and query-key pairs (fewer tokens where several prompts have
fewer pairs than one), its decodes at their mean context. If the profile measured the cost of unequal
contexts, attention moves from there towards its price at the longest context by the profile's one
coefficient. Kernels run back to back: host work is assumed to be hidden behind them, as in an engine with
asynchronous scheduling.

Beyond the measured range, times are extrapolated along the slope of the last octave
(`kernel_profile.slope_beyond`), and a chunk longer than measured costs as much as in pieces, each on top of
the previous ones: it attends to as many tokens. Every such step is counted (`KernelTables.outside`) and
reported in the notes of a run.
"""

from __future__ import annotations

from bisect import bisect_right
from math import ceil, sqrt
from pathlib import Path
from typing import NamedTuple

import numpy as np

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.kernel_folder import load_kernel_profile
from blis_py.latency.kernel_profile import (
    Array,
    KernelProfile,
    cell,
    continued,
    continued_curve,
    interpolate,
    value_at,
)
from blis_py.latency.notes import Outside
from blis_py.latency.step_run import StepRun, run_of, within_the_clock
from blis_py.models.model_shape import ModelShape

_NO_LIMIT = 1 << 62


class _Decode(NamedTuple):
    """Price of a pure decode step of a fixed number of sequences over Σ context, and its measured range."""

    at: list[float]
    ns: list[float]
    slopes: list[float]
    """Slope after each of the points `at`."""
    longest: int
    """Longest mean context measured."""
    kv_limit: int
    context_limit: int
    """-1, -2 if the batch itself lies outside."""


class KernelTables:
    """Step times by a folder of measured kernel times (`kernel_profile`); see `LatencyModel`.

    Immutable except for the counter `outside`.
    """

    name = "kernel-tables"

    def __init__(self, shape: ModelShape, gpu: GpuSpec, tp: int, kernel_profile: str | Path) -> None:
        profile = load_kernel_profile(kernel_profile, shape, gpu, tp)
        self.provenance = profile.source
        self.frontend = FrontendDelays()
        self.uses_max_context = profile.skew > 0
        self.outside = Outside()
        self._profile = profile
        self._axes, self._attention = continued(profile.axes, profile.attention, (1, 2, 3))
        self._tokens, self._sequences = continued_curve(profile.tokens), continued_curve(profile.sequences)
        self._last_chunk = float(profile.axes[0][-1])
        self._limits = _limits(profile)
        self._token_cache: dict[int, float] = {}
        self._decode_cache: dict[int, _Decode] = {}

    # --- parts ---------------------------------------------------------------------------------------

    def _tokens_ns(self, tokens: int) -> float:
        ns = self._token_cache.get(tokens)
        if ns is None:
            ns = value_at(self._tokens, tokens)
            self._token_cache[tokens] = ns
        return ns

    def _mixed_attention_ns(self, f: StepFeatures, chunk: float, past: float) -> float:
        seqs, skew = f.decode_seqs, self._profile.skew
        if not seqs:
            return self._attention_ns(chunk, past, 0, 0)
        ns = self._attention_ns(chunk, past, seqs, f.decode_kv_tokens / seqs)
        return ns + skew * (self._attention_ns(chunk, past, seqs, f.max_context) - ns) if skew else ns

    def _attention_ns(self, chunk: float, past: float, seqs: int, context_tokens: float) -> float:
        ns, last = 0.0, self._last_chunk
        while chunk > last:
            ns += interpolate(self._axes, self._attention, (last, past, seqs, context_tokens))
            chunk, past, seqs, context_tokens = chunk - last, past + last, 0, 0.0
        return ns + interpolate(self._axes, self._attention, (chunk, past, seqs, context_tokens))

    def _decode(self, seqs: int) -> _Decode:
        decode = self._decode_cache.get(seqs)
        if decode is None:
            _, _, counts, contexts = self._axes
            below, weight = cell(counts, seqs)
            table = self._attention[0, 0]
            attention = (1 - weight) * table[below] + weight * table[below + 1]
            at = contexts * seqs
            ns = attention + self._tokens_ns(seqs) + value_at(self._sequences, seqs)
            slopes = np.diff(ns) / np.diff(at)
            measured = seqs <= min(most for name, most in self._limits.items() if name in _OF_DECODES)
            around = self._profile.longest[below : below + (2 if weight else 1)]
            longest = int(around.min()) if measured else 0
            decode = self._decode_cache[seqs] = _Decode(
                at[:-1].tolist(),
                ns[:-1].tolist(),
                slopes.tolist(),
                longest,
                seqs * longest if measured else -1,
                (longest if self.uses_max_context else _NO_LIMIT) if measured else -2,
            )
        return decode

    # --- counting ------------------------------------------------------------------------------------

    def _count_decodes(self, f: StepFeatures, steps: int) -> None:
        decode = self._decode(f.decode_seqs)
        if self.outside.count_run(f, steps, decode.kv_limit, decode.context_limit):
            self._far(f.after(steps - 1))

    def _count_mixed(self, f: StepFeatures, chunk: float, past: float) -> None:
        outside = self.outside
        outside.priced += 1
        most, seqs = self._limits, f.decode_seqs
        decode = self._decode(seqs) if seqs else None
        if (
            f.prefill_tokens + seqs > most["tokens"]
            or f.prefill_seqs + seqs > most["sequences"]
            or chunk > most["chunk"]
            or past > most["cached tokens before a chunk"]
            or seqs > most["decodes beside a chunk"]
            or (
                decode is not None
                and (f.decode_kv_tokens > decode.kv_limit or f.max_context > decode.context_limit)
            )
        ):
            outside.steps += 1
            self._far(f, chunk, past)

    def _far(self, f: StepFeatures, chunk: float = 0, past: float = 0) -> None:
        """Record the excess of a step that lies outside."""
        seqs = f.decode_seqs
        values = {
            "tokens": f.prefill_tokens + seqs,
            "sequences": f.prefill_seqs + seqs,
            "chunk": ceil(chunk),
            "cached tokens before a chunk": ceil(past),
            "decodes": seqs,
            "decodes beside a chunk": seqs if chunk else 0,
        }
        for name, value in values.items():
            self.outside.record(name, value, self._limits[name])
        if seqs and seqs <= self._limits["decodes"]:
            longest = f.max_context if self.uses_max_context else 0
            context_tokens = max(ceil(f.decode_kv_tokens / seqs), longest)
            self.outside.record("context of a decode", context_tokens, self._decode(seqs).longest)

    # --- the interface -------------------------------------------------------------------------------

    def step_ns(self, features: StepFeatures) -> int:
        f = features
        if not f.prefill_seqs:
            if not f.decode_seqs:
                return max(int(self._tokens_ns(0)), 1)
            self._count_decodes(f, 1)
            ns, skew = self._decode_ns(f.decode_seqs, f.decode_kv_tokens), self._profile.skew
            if skew:
                ns += skew * (self._decode_ns(f.decode_seqs, f.decode_seqs * f.max_context) - ns)
            return max(int(ns), 1)
        chunk, past = one_chunk(f.prefill_tokens, f.prefill_pairs)
        self._count_mixed(f, chunk, past)
        ns_in_all = self._tokens_ns(f.prefill_tokens + f.decode_seqs)
        ns_in_all += self._mixed_attention_ns(f, chunk, past)
        ns_in_all += value_at(self._sequences, f.prefill_seqs + f.decode_seqs)
        return max(int(ns_in_all), 1)

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self.step_ns(features), 0)

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        seqs = features.decode_seqs
        grown = seqs * np.arange(steps, dtype=np.float64)
        ns, skew = self._decodes_ns(seqs, features.decode_kv_tokens + grown), self._profile.skew
        if skew:
            ns += skew * (self._decodes_ns(seqs, seqs * features.max_context + grown) - ns)
        whole = np.maximum(within_the_clock(ns).astype(np.int64), 1)
        run = run_of(whole, start_ns, until_ns)
        self._count_decodes(features, run.steps)  # unless it is needed
        return run

    def _decode_ns(self, seqs: int, kv_tokens: int) -> float:
        line = self._decode(seqs)
        i = bisect_right(line.at, kv_tokens) - 1
        return line.ns[i] + line.slopes[i] * (kv_tokens - line.at[i])

    def _decodes_ns(self, seqs: int, kv_tokens: Array) -> Array:
        """The same operations on an array."""
        at, ns, slopes = map(np.asarray, self._decode(seqs)[:3])
        i = np.searchsorted(at, kv_tokens, side="right") - 1
        prices: Array = ns[i] + slopes[i] * (kv_tokens - at[i])
        return prices


_OF_DECODES = ("tokens", "sequences", "decodes")
"""The limits that apply to a batch of decodes."""


def _limits(profile: KernelProfile) -> dict[str, int]:
    """Measured ranges, by the names used in notes."""
    chunks, pasts, counts, _ = profile.axes
    limits = {
        "tokens": profile.tokens.measured_to,
        "sequences": profile.sequences.measured_to,
        "chunk": chunks[-1],
        "cached tokens before a chunk": pasts[-1],
        "decodes": counts[-1],
        "decodes beside a chunk": profile.mixed_decodes,
    }
    return {name: int(min(most, _NO_LIMIT)) for name, most in limits.items()}


def one_chunk(tokens: float, pairs: float) -> tuple[float, float]:
    """The chunk, and the cached tokens before it, with as many query-key pairs as all chunks of a step."""
    chunk = tokens
    past = (pairs - chunk * (chunk + 1) / 2) / chunk
    if past < 0:  # several prompts, each attending only to itself
        chunk, past = (sqrt(1 + 8 * pairs) - 1) / 2, 0.0
    return chunk, past
