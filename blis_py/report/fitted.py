"""Fitted profiles as text and as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from blis_py.calibrate.fit.accuracy import Validation
from blis_py.calibrate.fit.bootstrap import interval, price_intervals
from blis_py.core.features import StepFeatures
from blis_py.latency.base import LatencyModel
from blis_py.latency.fitted import Fitted
from blis_py.latency.fitted_profile import Accuracy, FittedProfile, RegimeFit

LEVEL = 0.9
"""Confidence of all intervals."""


# -- one profile ---------------------------------------------------------------------------------------


def profile_data(profile: FittedProfile) -> dict[str, Any]:
    """Content of `profile_lines` as data."""
    return {
        "provenance": profile.describe(),
        "measured": {key: value for key, value in profile.meta.items() if key != "model_config"},
        "sources": profile.sources,
        "masks": None if profile.masks is None else asdict(profile.masks),
        "scan_ns": profile.scan_ns,
        "repeated_read_ns": profile.repeated_read_ns,
        "regimes": {name: _regime_data(fit) for name, fit in profile.regimes.items()},
    }


def _regime_data(fit: RegimeFit) -> dict[str, Any]:
    parts = {}
    for part, prices, draws in fit.parts():
        spans = price_intervals(prices, draws, LEVEL)
        parts[part] = {
            term: {"ns": price, "interval_ns": list(spans[term]) if term in spans else None}
            for term, price in prices.items()
        }
    errors = ("in_sample", "cross_validated", "without_correction")
    return {
        **parts,
        "knee_tokens": fit.knee,
        "correction": None if fit.correction is None else asdict(fit.correction),
        "domain": {name: list(limits) for name, limits in fit.domain.items()},
        "shapes": fit.shapes,
        "excluded": fit.excluded,
        **{name: None if (error := getattr(fit, name)) is None else asdict(error) for name in errors},
    }


def profile_lines(profile: FittedProfile) -> Iterator[str]:
    """A profile as readable text."""
    yield profile.describe()
    facts = (
        "device",
        "device_kind",
        "clock",
        "model",
        "dtype",
        "tp",
        "block_size",
        "num_kv_blocks",
        "torch",
    )
    meta = {
        key: profile.meta[key]
        for key in (*facts, "triton", "driver", "engine_commit")
        if profile.meta.get(key)
    }
    yield "measured: " + ", ".join(f"{key} {value}" for key, value in meta.items())
    yield "steps: " + ", ".join(f"{name} {count:,}" for name, count in profile.sources.items())
    yield from _seldom_lines(profile)
    for name, fit in profile.regimes.items():
        yield ""
        yield from _regime_lines(name, fit)


def _seldom_lines(profile: FittedProfile) -> Iterator[str]:
    """Measured costs of rare kinds of steps."""
    if profile.masks is not None:
        masks = profile.masks
        yield f"masks: {masks.row_ns:,.6g} ns a constrained row, {masks.step_ns:,.6g} ns a step that has any"
    if profile.scan_ns is not None:
        yield f"scans: {profile.scan_ns:,.6g} ns for each waiting request looked up in the cache"
    if profile.repeated_read_ns:
        yield f"shared pages: {profile.repeated_read_ns:,.6g} ns less for each KV entry read again"


def _regime_lines(name: str, fit: RegimeFit) -> Iterator[str]:
    left_out = f", {fit.excluded} left out as interrupted" if fit.excluded else ""
    yield f"{name} steps: {fit.shapes:,} compositions{left_out}"
    for part, prices, draws in fit.parts():
        spans = price_intervals(prices, draws, LEVEL)
        label = "GPU" if part == "gpu" else part
        yield f"  {label + ' price, ns per unit':30}{'':>14}{f'{LEVEL:.0%} interval':>30}"
        for term, price in prices.items():
            label = f"{term} (from {fit.knee})" if term == "tokens_beyond_knee" else term
            span = "{:,.6g} to {:,.6g}".format(*spans[term]) if term in spans else ""
            yield f"    {label:28}{price:>14,.6g}{span:>30}"
    if fit.correction is not None:
        ratios = [value for row in fit.correction.ratio for value in row]
        size = f"{len(fit.correction.tokens)} x {len(fit.correction.kv_tokens)}"
        yield f"  table over tokens and KV: {size}, {min(ratios) - 1:+.0%} to {max(ratios) - 1:+.0%}"
    yield f"  {'error':28}{'steps':>8}{'MAPE':>9}{'bias':>9}{'p95':>9}"
    for label, error in (
        ("in sample", fit.in_sample),
        ("cross-validated", fit.cross_validated),
        ("  without the table", fit.without_correction if fit.correction is not None else None),
    ):
        if error is not None:
            yield f"    {label:26}{_errors(error)}"
    limits = ", ".join(f"{name} to {high:,}" for name, (_, high) in fit.domain.items() if high > 0)
    yield f"  measured: {limits}"


def _errors(error: Accuracy) -> str:
    return f"{error.steps:>8,}{error.mape:>9.2%}{error.bias:>+9.2%}{error.p95:>9.2%}"


# -- against measured runs -----------------------------------------------------------------------------


def validation_data(model: LatencyModel, rows: Sequence[Validation], notes: Sequence[str]) -> dict[str, Any]:
    return {
        "provenance": model.provenance,
        "notes": list(notes),
        "runs": [asdict(row) for row in rows],
    }


def validation_lines(model: LatencyModel, rows: Sequence[Validation], notes: Sequence[str]) -> Iterator[str]:
    """Errors of step times, by run, regime and kind of step."""
    yield model.provenance
    head = "".join(f"{name:>9}" for name in ("MAPE", "bias", "p95", "GPU", "host", "pace", "rest"))
    yield f"{'run':22}{'regime':8}{'kind':11}{'steps':>8}{head}"
    for row in rows:
        tail = f"{row.gpu.mape:>9.2%}{row.host.mape:>9.2%}{row.pace:>+9.2%}{row.mape_at_pace:>9.2%}"
        yield f"{row.source[:21]:22}{row.regime:8}{row.kind:11}{_errors(row.synchronous)}{tail}"
    yield "GPU, host: MAPE of the part. pace: common factor, measured over predicted; rest: MAPE without it."
    for note in notes:
        yield f"note: {note}"


# -- two profiles --------------------------------------------------------------------------------------

_TYPICAL = (
    ("decode of 1", StepFeatures(decode_seqs=1, decode_kv_tokens=128, max_context=128, emitted_rows=1)),
    ("decode of 8", StepFeatures(decode_seqs=8, decode_kv_tokens=2048, max_context=384, emitted_rows=8)),
    ("decode of 32", StepFeatures(decode_seqs=32, decode_kv_tokens=8192, max_context=512, emitted_rows=32)),
    (
        "prompt of 256",
        StepFeatures(prefill_seqs=1, prefill_tokens=256, prefill_pairs=256 * 257 // 2, emitted_rows=1),
    ),
    (
        "prompt and decode of 8",
        StepFeatures(
            prefill_seqs=1,
            prefill_tokens=128,
            prefill_pairs=128 * 129 // 2,
            decode_seqs=8,
            decode_kv_tokens=2048,
            max_context=384,
            emitted_rows=9,
        ),
    ),
)


def comparison_data(first: FittedProfile, second: FittedProfile) -> dict[str, Any]:
    """Times of typical steps by either profile, with intervals, ms."""
    rows = []
    for label, features in _TYPICAL:
        row: dict[str, Any] = {"step": label}
        for side, profile in (("first", first), ("second", second)):
            model = Fitted(profile)
            drawn = [model.redrawn(i).step_ns(features) / 1e6 for i in range(profile.draws)]
            row[f"{side}_ms"] = model.step_ns(features) / 1e6
            row[f"{side}_interval_ms"] = list(interval(drawn, LEVEL)) if drawn else None
        row["change"] = row["second_ms"] / row["first_ms"] - 1
        rows.append(row)
    return {"first": first.describe(), "second": second.describe(), "steps": rows}


def comparison_lines(first: FittedProfile, second: FittedProfile) -> Iterator[str]:
    """The comparison as text, with the prices that differ."""
    figures = comparison_data(first, second)
    yield f"first:  {figures['first']}"
    yield f"second: {figures['second']}"
    yield f"{'step':26}{'first, ms':>24}{'second, ms':>24}{'change':>9}"
    for row in figures["steps"]:
        sides = [
            _with_interval(row[f"{side}_ms"], row[f"{side}_interval_ms"]) for side in ("first", "second")
        ]
        yield f"{row['step']:26}{sides[0]:>24}{sides[1]:>24}{row['change']:>+9.1%}"
    for regime in first.regimes.keys() & second.regimes.keys():
        ours, theirs = first.regimes[regime], second.regimes[regime]
        yield f"{regime + ' price, ns per unit':26}{'first':>24}{'second':>24}"
        for part, one, other in (("GPU", ours.gpu, theirs.gpu), ("host", ours.host, theirs.host)):
            for term in dict.fromkeys((*one, *other)):
                yield f"  {part} {term:20}{one.get(term, 0.0):>24,.6g}{other.get(term, 0.0):>24,.6g}"


def _with_interval(ms: float, span: Sequence[float] | None) -> str:
    return f"{ms:.3f}" if span is None else f"{ms:.3f} ({span[0]:.3f}..{span[1]:.3f})"
