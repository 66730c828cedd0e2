"""A server fitted to a client's run: for the terminal, and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from blis_py.calibrate.fit.server import ServerFit

_WORDS = {
    "step_scale": "GPU time of a step, times",
    "gap_us": "gap between steps, us",
    "gap_seq_us": "the same per sequence, us",
    "frontend_ms": "front end, ms",
    "frontend_seq_ms": "the same per sequence, ms",
    "frontend_token_ms": "the same per prompt token, ms",
}


def server_fit_lines(fit: ServerFit) -> Iterator[str]:
    """The numbers with their intervals, and the errors without and with them."""
    logs = "taken as served by one instance" if fit.instances == 1 else f"served by {fit.instances} instances"
    yield f"{fit.requests:,} requests of {fit.source}, {logs}"
    yield f"{'':30}{'fitted':>10}   90% interval"
    for name, words in _WORDS.items():
        number = fit.numbers[name]
        yield f"{words:30}{number.value:>10.4g}   {number.low:.4g} to {number.high:.4g}"
    yield f"{'predicted over measured':30}{'before':>10}{'after':>10}"
    for name, error in fit.before.items():
        yield f"  {name:28}{error:>+10.1%}{fit.after[name]:>+10.1%}"
    yield "slices of time, predicted with what the rest of the run gave: mean error"
    for name, error in fit.held_out_before.items():
        yield f"  {name:28}{error:>10.1%}{fit.held_out[name]:>10.1%}"


def server_fit_data(fit: ServerFit) -> dict[str, Any]:
    """The fit as plain data."""
    return asdict(fit)
