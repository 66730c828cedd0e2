"""The state of every instance over time, from the compact steps table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from blis_py.figures.run import Columns, RunView

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class TimelineFigure:
    """Averages over equal slices of the run; matrices have one row per instance."""

    time_s: Floats
    """Middle of each slice."""
    running: Floats
    waiting: Floats
    kv_pct: Floats
    busy: Floats
    """Share of the slice with a step in progress."""
    preemptions: Floats | None
    """Preemptions in each slice; `None` if the steps table lacks them."""
    prefill_tokens: Floats
    """Tokens computed in each slice."""
    decode_tokens: Floats
    steps: Floats
    """Steps in each slice, fractional for steps that extend beyond it."""
    pools: tuple[str, ...] = ()
    """Name of each instance's pool; empty with one pool only."""

    @property
    def slice_s(self) -> float:
        return float(2 * self.time_s[0])


def timeline(run: RunView, slices: int = 400) -> TimelineFigure | None:
    """The state of every instance over time, or `None` if the run did not record its steps."""
    recorded = [(each, each.steps) for each in run.instances if each.steps is not None]
    if not recorded or not run.end_s:
        return None
    edges = np.linspace(0, run.end_s * 1e9, slices + 1)

    def averages(column: str) -> Floats:
        return np.stack([_sums(steps, edges, _lasting(column)) for _, steps in recorded]) / np.diff(edges)

    def sums(amount: Callable[[Columns], Floats]) -> Floats:
        return np.stack([_sums(steps, edges, amount) for _, steps in recorded])

    stated = all("preemptions" in steps for _, steps in recorded)
    blocks = np.array([[each.num_kv_blocks] for each, _ in recorded])
    return TimelineFigure(
        time_s=(edges[1:] + edges[:-1]) / 2e9,
        running=averages("running"),
        waiting=averages("waiting"),
        kv_pct=100 * averages("kv_blocks") / blocks,
        busy=sums(_duration_ns) / np.diff(edges),
        preemptions=sums(_of("preemptions")) if stated else None,
        prefill_tokens=sums(_prefill_tokens),
        decode_tokens=sums(_decode_tokens),
        steps=sums(_of("steps")),
        pools=tuple(pools) if len(set(pools := [each.pool for each, _ in recorded])) > 1 else (),
    )


def _prefill_tokens(steps: Columns) -> Floats:
    """Tokens of prompts; a block being denoised is priced like a piece of prompt, and is none."""
    return _of("prefill_tokens")(steps) * (1 - _denoising(steps))


def _decode_tokens(steps: Columns) -> Floats:
    """Decode tokens: equal for all steps of a run of identical ones."""
    decoding = _of("decode_seqs")(steps) * _of("steps")(steps)
    return decoding + _of("prefill_tokens")(steps) * _denoising(steps)


def _denoising(steps: Columns) -> Floats:
    """Share of denoising blocks in a round; 0 for kinds of requests without rounds."""
    answers, prompts = _of("denoise_blocks")(steps), _of("prefill_blocks")(steps)
    return np.divide(answers, answers + prompts, out=np.zeros_like(answers), where=answers > 0)


def _of(column: str) -> Callable[[Columns], Floats]:
    """A column accessor; zeros if the table lacks the column."""

    def amount(steps: Columns) -> Floats:
        values = steps[column] if column in steps else np.zeros(len(steps["start_ns"]))
        return values.astype(np.float64)

    return amount


def _lasting(column: str) -> Callable[[Columns], Floats]:
    """A state multiplied by its duration."""
    return lambda steps: _duration_ns(steps) * steps[column]


def _duration_ns(steps: Columns) -> Floats:
    return (steps["end_ns"] - steps["start_ns"]).astype(np.float64)


def _sums(steps: Columns, edges: Floats, amount: Callable[[Columns], Floats]) -> Floats:
    """Sums between the edges, with each row's amount spread evenly over its time; 0 while idle."""
    if not len(steps["start_ns"]):
        return np.zeros(len(edges) - 1)
    start, end = steps["start_ns"].astype(np.float64), steps["end_ns"].astype(np.float64)
    at_end = np.cumsum(amount(steps))
    at_start = np.concatenate(([0.0], at_end[:-1]))
    moments = np.stack((start, end), axis=1).ravel()
    total = np.stack((at_start, at_end), axis=1).ravel()
    sums: Floats = np.diff(np.interp(edges, moments, total))
    return sums
