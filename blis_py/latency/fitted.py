"""Step time from measured steps: prices of a physical basis, fitted to the step times of an engine.

    GPU       = surface(tokens, decode KV) + Σ price * term        terms: `fitted_terms`
    host      = Σ price * term                                     before launching and behind the GPU
    launching = Σ price * term                                     beside the GPU, if it was measured

    synchronous: max(GPU, launching) + host        behind another step: max(GPU, launching + host)

where the overlapped loop may begin on the GPU before the host has read the outcome of the step before
(`launch_pipeline`). Subtracted are the savings for KV entries read again in the same step, being in pages
that sequences share (`repeated_read_ns`, if it was measured). Layers with a sliding window are charged, on a
GPU, for what they read of the contexts (`windowed_reads`).

One set of prices per regime: a step that fits a captured graph is priced by those of `graph`, with its batch,
or with prompts its tokens, padded to the graph's size; everything else by those of `eager`. Steps outside the
measured range are priced too, but each is counted (`Fitted.outside`) and reported in the notes of a run. If
the GPU has a datasheet, they are extrapolated as in `trained` (`fitted_beyond`), otherwise along their lines.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, LatencyModel, StepTime
from blis_py.latency.fitted_beyond import continued_decodes, further_ns, inside
from blis_py.latency.fitted_profile import FittedProfile, Prices, RegimeFit
from blis_py.latency.fitted_surface import FittedSurface, SurfaceCurve
from blis_py.latency.fitted_terms import GROWING, RARE, SURFACE, TERMS, TRACKED, StepPoint
from blis_py.latency.notes import Outside
from blis_py.latency.step_run import LAST_NS, PricedRun, StepRun, run_of, within_the_clock
from blis_py.latency.windowed_reads import WindowedReads, windowed_reads
from blis_py.models.model_shape import ModelShape

SCALAR_STEPS = 10
"""Runs up to this length are summed in plain Python, longer ones in numpy; at about this length the two cost
the same."""

_UNLIMITED = 1 << 62

Array = NDArray[np.float64]


class _Decoded(NamedTuple):
    """Price of a decode step of a fixed number of sequences: a curve over Σ context, plus a term for the
    longest."""

    curve: SurfaceCurve
    """Includes the constant part and the rounding."""
    arrays: tuple[Array, Array, Array] | None
    """The curve for many steps at once; None if it is a single line."""
    per_context: float
    host_ns: int
    launching_ns: int
    kv_limit: int
    context_limit: int
    """Upper end of the measured range; -1 if the batch itself lies outside."""
    limits: dict[str, tuple[int, int]]


class _Regime:
    """The prices of one regime, prepared for evaluation."""

    def __init__(self, fit: RegimeFit, prices: dict[str, Prices]) -> None:
        gpu, host, launching = prices["gpu"], prices["host"], prices.get("launching", {})
        self.fit = fit
        self.surface = FittedSurface(gpu, fit.knee, fit.correction)
        self.curves: dict[int, SurfaceCurve] = {}
        rest = {name: price for name, price in gpu.items() if price and name not in SURFACE}
        inside = (*GROWING, "active_experts")
        self.fixed = [(TERMS[name], price) for name, price in rest.items() if name not in inside]
        self.host = [(TERMS[name], price) for name, price in host.items() if price]
        self.launching = [(TERMS[name], price) for name, price in launching.items() if price]
        self.gpu_line, self.host_line = _line(rest), _line(host)
        self.host_step, self.host_prefill = host.get("step", 0.0), host.get("any_prefill", 0.0)
        self.host_batch = host.get("begins_batch", 0.0)
        self.per_expert = rest.get("active_experts", 0.0)
        self.per_context = rest.get("max_context", 0.0)
        self.per_padded = rest.get("padded_kv_tokens", 0.0)
        self.rare = [(TERMS[name], rest[name]) for name in RARE if name in rest]
        self.tracked = any(name in rest for name in TRACKED)
        self.limits = [(name, high) for name, (_, high) in fit.domain.items() if hasattr(_EMPTY, name)]


_EMPTY = StepFeatures()


def _line(prices: Prices) -> tuple[float, float, float, float, float, float]:
    """Prices of prompts, their tokens, pairs and cached tokens, of decodes, and of emitted rows."""
    seqs, prompts = prices.get("seqs", 0.0), prices.get("prefill_seqs", 0.0)
    names = ("prefill_tokens", "prefill_pairs", "prefill_kv_tokens")
    new, pairs, read = (prices.get(name, 0.0) for name in names)
    return seqs + prompts, new, pairs, read, seqs, prices.get("emitted_rows", 0.0)


class Fitted:
    """Step times by a fitted profile; see `LatencyModel`.

    Immutable except for the counter `outside`.

    Args:
        profile: the fitted profile.
        shape: the model it was measured on; determines how many experts a batch reads.
        draw: the bootstrap set of prices to use; None = the fit itself.
        hides_host: price back-to-back steps, see `overlapped`.
        guide: model for extrapolation beyond the measured range; None = along their own lines.
    """

    name = "fitted"

    def __init__(
        self,
        profile: FittedProfile,
        shape: ModelShape | None = None,
        draw: int | None = None,
        hides_host: bool = False,
        guide: LatencyModel | None = None,
    ) -> None:
        self._guide = guide
        self.profile, self.shape, self.index, self._hides_host = profile, shape, draw, hides_host
        self.provenance = profile.describe() + ("" if draw is None else f", bootstrap set {draw}")
        self.frontend = FrontendDelays()
        self.outside = Outside("" if guide is None else f", where prices go on as those of `{guide.name}`")
        prices = {
            name: fit.prices() if draw is None else fit.draw(draw) for name, fit in profile.regimes.items()
        }
        self._eager = _Regime(profile.regimes["eager"], prices["eager"])
        graph = profile.regimes.get("graph")
        self._graph = _Regime(graph, prices["graph"]) if graph is not None else None
        self._buckets = profile.graph_buckets if graph is not None else ()
        self._mixed = profile.mixed_buckets if graph is not None else ()
        self._mixed_prompts = profile.mixed_prompts
        self._saved_ns = profile.repeated_read_ns
        self._windows = windowed_reads(profile.meta, shape)
        self.uses_max_context = self._eager.tracked or (self._graph is not None and self._graph.tracked)
        self._decodes: dict[tuple[int, int], _Decoded] = {}
        self._expert_cache: dict[int, float] = {}

    def redrawn(self, index: int) -> Fitted:
        """The model with the prices of one bootstrap draw, `index` from 0 to `profile.draws` - 1."""
        return Fitted(self.profile, self.shape, index, guide=self._guide)

    def overlapped(self) -> Fitted:
        """The model for overlapped host work: a step takes the maximum of GPU and host time, launching
        included.

        The profile's host time was measured apart from the GPU, on an engine that can hide it. Both models
        count the steps outside together.
        """
        model = Fitted(self.profile, self.shape, self.index, hides_host=True, guide=self._guide)
        model.outside = self.outside
        return model

    # --- parts ---------------------------------------------------------------------------------------

    def _experts(self, tokens: int) -> float:
        experts = self._expert_cache.get(tokens)
        if experts is None:
            experts = self._expert_cache[tokens] = expected_experts(
                self.shape, tokens, self.profile.experts_in_use
            )
        return experts

    def _bucket(self, f: StepFeatures) -> int:
        """Padded size of the graph that replays the step, tokens if it has prompts; 0 if none."""
        blocks = getattr(f, "denoise_blocks", 0)
        count = blocks if blocks and not f.decode_seqs else f.decode_seqs
        if self._mixed and f.prefill_seqs and not blocks:
            fits = f.prefill_seqs <= self._mixed_prompts
            i = bisect_left(self._mixed, f.prefill_tokens + f.decode_seqs)
            return self._mixed[i] if fits and i < len(self._mixed) else 0
        if not count or f.prefill_seqs != blocks or not self._buckets:
            return 0
        i = bisect_left(self._buckets, count)
        return self._buckets[i] if i < len(self._buckets) else 0

    def _padded(self, f: StepFeatures, bucket: int) -> int:
        """Tokens of the graph that replays the step: one a decode, a block's a denoised block."""
        blocks = getattr(f, "denoise_blocks", 0)
        return bucket * (f.prefill_tokens // blocks) if blocks else bucket

    def _point(self, f: StepFeatures, bucket: int, fit: RegimeFit) -> StepPoint:
        blocks = getattr(f, "denoise_blocks", 0)
        x = StepPoint()
        x.tokens = self._padded(f, bucket) if bucket else f.prefill_tokens + f.decode_seqs
        x.seqs = f.prefill_seqs + f.decode_seqs
        x.attended = f.decode_seqs + blocks
        x.decode_kv_tokens = f.decode_kv_tokens
        x.prefill_pairs, x.prefill_kv_tokens = f.prefill_pairs, f.prefill_kv_tokens
        if self._windows is not None:
            x.decode_kv_tokens, x.prefill_pairs, x.prefill_kv_tokens = self._reads(f, self._windows)
        x.max_context = f.max_context if f.max_context > 0 else 0
        x.prefill_seqs, x.prefill_tokens = f.prefill_seqs - blocks, f.prefill_tokens
        x.emitted_rows = f.emitted_rows
        x.active_experts = self._experts(x.tokens)
        x.begins_batch = getattr(f, "begins_batch", 0)
        x.knee = fit.knee
        return x

    @staticmethod
    def _reads(f: StepFeatures, windows: WindowedReads) -> tuple[float, float, float]:
        """KV entries that decodes read; pairs of the prefills, and the entries these read back."""
        kv_tokens = windows.decode_kv_tokens(f.decode_kv_tokens, f.decode_seqs)
        prompts = f.prefill_seqs, f.prefill_tokens, f.prefill_pairs, f.prefill_kv_tokens
        return (kv_tokens, *windows.prefill(*prompts))

    def _curve(self, regime: _Regime, tokens: int) -> SurfaceCurve:
        """The part that depends on tokens and decode KV only, experts and rounding included."""
        curve = regime.curves.get(tokens)
        if curve is None:
            bare = regime.surface.curve(tokens)
            more = regime.per_expert * self._experts(tokens) + 0.5 if regime.per_expert else 0.5
            curve = SurfaceCurve(bare.at, [ns + more for ns in bare.ns], bare.slopes)
            regime.curves[tokens] = curve
        return curve

    @property
    def launches_apart(self) -> bool:
        """Whether launching was measured apart from the rest of the host's work."""
        return any(fit.launching for fit in self.profile.regimes.values())

    def launch_parts(self, features: StepFeatures) -> tuple[int, int, int]:
        """GPU time of a step, and of the host's work what is not launching and what is, in ns.

        Pure decode steps do not count as priced.
        """
        if features.prefill_seqs or not features.decode_seqs:
            return self._counted_ns(features)
        decode = self._decode(features.decode_seqs, features.emitted_rows)
        gpu_ns = _decode_ns(decode, features.decode_kv_tokens, features.max_context)
        return self._less(gpu_ns, features), decode.host_ns, decode.launching_ns

    def _parts_ns(self, f: StepFeatures) -> tuple[int, int]:
        if not f.prefill_seqs and f.decode_seqs:
            decode = self._decode(f.decode_seqs, f.emitted_rows)
            self._count(decode, f, 1)
            gpu_ns = self._less(_decode_ns(decode, f.decode_kv_tokens, f.max_context), f)
            return gpu_ns, decode.host_ns + self._shown_ns(decode.launching_ns, gpu_ns)
        gpu_ns, host_ns, launching_ns = self._counted_ns(f)
        return gpu_ns, host_ns + self._shown_ns(launching_ns, gpu_ns)

    def _counted_ns(self, f: StepFeatures) -> tuple[int, int, int]:
        """The parts of a step that is no pure decode step, which counts as priced."""
        bucket = self._bucket(f) if self._buckets or self._mixed else 0
        regime = self._graph if bucket and self._graph is not None else self._eager
        self.outside.priced += 1
        for name, high in regime.limits:
            if getattr(f, name) > high:
                self.outside.steps += 1
                self._far(f, regime.limits)
                if self._guide is not None and type(f) is StepFeatures:
                    return self._beyond_ns(f, regime, self._guide)
                break
        return self._mixed_ns(f, bucket, regime)

    def _beyond_ns(self, f: StepFeatures, regime: _Regime, guide: LatencyModel) -> tuple[int, int, int]:
        gpu, host, launching = self._mixed_ns(inside(f, regime.limits), 0, regime)
        return gpu + further_ns(guide, f, regime.limits), host, launching

    def _shown_ns(self, launching_ns: int, gpu_ns: int) -> int:
        """The part of launching that counts beside this GPU time: all of it where host work is hidden, else
        what the GPU does not cover."""
        return launching_ns if self._hides_host else max(launching_ns - gpu_ns, 0)

    def _mixed_ns(self, f: StepFeatures, bucket: int, regime: _Regime) -> tuple[int, int, int]:
        plain = type(f) is StepFeatures
        blocks = 0 if plain else getattr(f, "denoise_blocks", 0)
        kv: float = f.decode_kv_tokens
        pairs: float = f.prefill_pairs
        read: float = f.prefill_kv_tokens
        if self._windows is not None:
            kv, pairs, read = self._reads(f, self._windows)
        new = f.prefill_tokens
        prompts, seqs, rows = f.prefill_seqs - blocks, f.decode_seqs + blocks, f.emitted_rows
        curve = self._curve(regime, self._padded(f, bucket) if bucket else new + f.decode_seqs)
        i = bisect_right(curve.at, kv) - 1
        gpu = curve.ns[i] + curve.slopes[i] * (kv - curve.at[i])
        a = regime.gpu_line
        gpu += a[0] * prompts + a[1] * new + a[2] * pairs + a[3] * read + a[4] * seqs + a[5] * rows
        if regime.rare:
            x = self._point(f, bucket, regime.fit)
            gpu += sum([price * term(x) for term, price in regime.rare])
        a = regime.host_line
        host = regime.host_step + a[0] * prompts + a[1] * new + a[4] * seqs + a[5] * rows
        if prompts:
            host += regime.host_prefill
        if regime.host_batch and not plain:
            host += regime.host_batch * getattr(f, "begins_batch", 0)
        launching_ns = 0
        if regime.launching:
            launching_ns = _sum_ns(regime.launching, self._point(f, bucket, regime.fit))
        return self._less(int(gpu) or 1, f), int(host + 0.5), launching_ns

    def _less(self, gpu_ns: int, f: StepFeatures) -> int:
        """The GPU time minus the savings for repeated page reads."""
        if not f.shared_kv_tokens:
            return gpu_ns
        return max(gpu_ns - int(self._saved_ns * f.shared_kv_tokens), 1)

    def _decode(self, seqs: int, rows: int) -> _Decoded:
        decoded = self._decodes.get((seqs, rows))
        if decoded is not None:
            return decoded
        f = StepFeatures(decode_seqs=seqs, emitted_rows=rows)
        bucket = self._bucket(f)
        regime = self._graph if bucket and self._graph is not None else self._eager
        x = self._point(f if self._guide is None else inside(f, regime.limits), bucket, regime.fit)
        curve = self._curve(regime, x.tokens)
        if self._windows is not None:
            curve = self._windows.over_contexts(curve, seqs)
        if self._guide is not None:
            curve = continued_decodes(curve, self._guide, f, regime.limits)
        rest = sum([price * term(x) for term, price in regime.fixed])
        starts = [ns + rest for ns in curve.ns]
        limits = regime.fit.domain
        small = seqs <= _most(limits, "decode_seqs") and rows <= _most(limits, "emitted_rows")
        decoded = self._decodes[seqs, rows] = _Decoded(
            SurfaceCurve(curve.at, starts, curve.slopes),
            (np.array(curve.at), np.array(starts), np.array(curve.slopes)) if len(starts) > 1 else None,
            regime.per_context + regime.per_padded * x.attended,
            _sum_ns(regime.host, x),
            _sum_ns(regime.launching, x),
            _most(limits, "decode_kv_tokens") if small else -1,
            _most(limits, "max_context") if small else -2,
            limits,
        )
        return decoded

    # --- counting ------------------------------------------------------------------------------------

    def _count(self, decode: _Decoded, f: StepFeatures, steps: int) -> None:
        if self.outside.count_run(f, steps, decode.kv_limit, decode.context_limit):
            self._far(f.after(steps - 1), [(name, high) for name, (_, high) in decode.limits.items()])

    def _far(self, f: StepFeatures, limits: Sequence[tuple[str, int]]) -> None:
        for name, high in limits:
            self.outside.record(name, getattr(f, name, 0), high)

    # --- the interface -------------------------------------------------------------------------------

    def step_ns(self, features: StepFeatures) -> int:
        gpu_ns, host_ns = self._parts_ns(features)
        return max(gpu_ns, host_ns) if self._hides_host else gpu_ns + host_ns

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(*self._parts_ns(features))

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        seqs, kv, longest = features.decode_seqs, features.decode_kv_tokens, features.max_context
        if not seqs:
            ends = list(accumulate([self.step_ns(features) for _ in range(steps)], initial=start_ns))[1:]
            return PricedRun(ends).until(until_ns)
        decode = self._decode(seqs, features.emitted_rows)
        # No later step is shorter, so this many suffice.
        gpu_ns, hides = self._less(_decode_ns(decode, kv, longest), features), self._hides_host
        least_ns = decode.launching_ns + (decode.host_ns if hides else 0)
        added_ns = 0 if hides else decode.host_ns
        first_ns = max(gpu_ns, least_ns) + added_ns
        steps = min(steps, max(1, (until_ns - start_ns - 1) // first_ns + 1))
        price = _in_numpy if steps > SCALAR_STEPS else _one_by_one
        saved_ns = int(self._saved_ns * features.shared_kv_tokens)
        run = price(decode, features, saved_ns, steps, start_ns, until_ns, least_ns, added_ns)
        self._count(decode, features, run.steps)
        return run


def expected_experts(shape: ModelShape | None, tokens: int, in_use: float) -> float:
    """Experts read by this many tokens, summed over the sparse layers.

    Args:
        in_use: experts among which they are routed evenly; 0 = all.
    """
    if shape is None or not shape.is_moe:
        return 0.0
    experts = max(in_use or shape.experts, shape.experts_per_token)
    # One expert per choice: with as many experts as choices, all of them are read.
    share = min(shape.experts_per_token / experts, 1.0)
    return shape.moe_layers * experts * (1.0 - (1.0 - share) ** tokens)


def _sum_ns(terms: list[tuple[Any, float]], x: StepPoint) -> int:
    """Sum of terms and their prices at a point."""
    return int(sum([price * term(x) for term, price in terms]) + 0.5)


def _most(limits: dict[str, tuple[int, int]], name: str) -> int:
    return limits[name][1] if name in limits else _UNLIMITED


def _decode_ns(decode: _Decoded, kv_tokens: int, longest_tokens: int) -> int:
    at, ns, slopes = decode.curve.at, decode.curve.ns, decode.curve.slopes
    i = bisect_right(at, kv_tokens) - 1
    gpu = ns[i] + slopes[i] * (kv_tokens - at[i])
    if longest_tokens > 0 and decode.per_context:
        gpu += decode.per_context * longest_tokens
    return int(gpu) or 1


def _one_by_one(
    decode: _Decoded,
    f: StepFeatures,
    less_ns: int,
    steps: int,
    start_ns: int,
    until_ns: int,
    least_ns: int,
    added_ns: int,
) -> PricedRun:
    """Steps of `max(GPU, least_ns) + added_ns`."""
    kv, longest, ends_ns, end_ns = f.decode_kv_tokens, f.max_context, [], start_ns
    for _ in range(steps):
        gpu_ns = max(_decode_ns(decode, kv, longest) - less_ns, 1)
        end_ns += max(gpu_ns, least_ns) + added_ns
        ends_ns.append(end_ns)
        if end_ns >= until_ns or end_ns > LAST_NS:
            break
        kv += f.decode_seqs
        longest += longest >= 0
    return PricedRun(ends_ns)


def _in_numpy(
    decode: _Decoded,
    f: StepFeatures,
    less_ns: int,
    steps: int,
    start_ns: int,
    until_ns: int,
    least_ns: int,
    added_ns: int,
) -> PricedRun:
    """The same operations in the same order as `_decode_ns`, on arrays."""
    done = np.arange(steps)
    kv = (f.decode_kv_tokens + f.decode_seqs * done).astype(np.float64)
    gpu: Array
    if decode.arrays is None:
        gpu = decode.curve.ns[0] + decode.curve.slopes[0] * (kv - decode.curve.at[0])
    else:
        at, ns, slopes = decode.arrays
        i = np.searchsorted(at, kv, side="right") - 1
        gpu = ns[i] + slopes[i] * (kv - at[i])
    if f.max_context >= 0 and decode.per_context:
        gpu += decode.per_context * (f.max_context + done)
    step_ns = np.maximum(within_the_clock(gpu).astype(np.int64) - less_ns, 1)
    step_ns = np.maximum(step_ns, least_ns) + added_ns
    return run_of(step_ns, start_ns, until_ns)
