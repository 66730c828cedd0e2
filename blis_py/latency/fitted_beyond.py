"""Extrapolation of a fitted price beyond its measurements, by a model of the hardware.

    price(step) = fitted(step inside) + guide(step) - guide(step inside)

The inside step has every feature clipped to the largest measured value, so the price is the fitted one at the
edge, and the part beyond is priced by arithmetic and traffic on that GPU. The prices of the fit itself would
extrapolate the noise of its last points, and price unmeasured features as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.core.features import FEATURE_NAMES, StepFeatures
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted_surface import SurfaceCurve

Limits = Sequence[tuple[str, int]]
"""Feature and its largest measured value."""


def inside(f: StepFeatures, limits: Limits) -> StepFeatures:
    """The step with every feature clipped to the measured range."""
    return f.but({name: min(f[name], most) for name, most in limits if name in FEATURE_NAMES})


def further_ns(guide: LatencyModel, f: StepFeatures, limits: Limits) -> int:
    """The guide's addition for the part of a step beyond the range."""
    return max(guide.step_ns(f) - guide.step_ns(inside(f, limits)), 0)


def continued_decodes(
    curve: SurfaceCurve, guide: LatencyModel, f: StepFeatures, limits: Limits
) -> SurfaceCurve:
    """The curve of decode steps over Σ context, if their number or contexts lie beyond the range.

    Args:
        curve: the curve of the largest measured number of decodes.
        f: the step, without context.
    """
    kv_most = dict(limits).get("decode_kv_tokens", 0)
    if kv_most <= 0:
        return curve
    at_edge, beyond = f.after(0), f.after(0)
    at_edge.decode_kv_tokens, beyond.decode_kv_tokens = kv_most, 2 * kv_most
    more_ns = further_ns(guide, at_edge, limits)
    slope = max(guide.step_ns(beyond) - guide.step_ns(at_edge), 0) / kv_most
    i = max(k for k, at in enumerate(curve.at) if at <= kv_most)
    edge_ns = curve.ns[i] + curve.slopes[i] * (kv_most - curve.at[i])
    ns = [value + more_ns for value in (*curve.ns[: i + 1], edge_ns)]
    return SurfaceCurve([*curve.at[: i + 1], float(kv_most)], ns, [*curve.slopes[: i + 1], slope])
