"""Autopsy of a prediction: the error of every metric, split into causes that sum to the whole.

It is a waterfall. It starts with the user's prediction; then one wrong input after the other is replaced by
the engine's and the recorded requests are served again; it ends with the measurement. The change of a metric
in a step of the waterfall is the share of that cause. Shares sum to the error, to the nanosecond. They depend
on the order, which is fixed (`CAUSES`): from settings to estimates, so that a wrong setting is not attributed
to the step times that result from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from blis_py.calibrate import kinds
from blis_py.calibrate._causes import Findings
from blis_py.calibrate.kinds import Blocks, check_kinds, recorded_blocks
from blis_py.calibrate.parity import Parity, predicted_steps
from blis_py.calibrate.recorded import Lengths, recorded_lengths, scheduler_config
from blis_py.calibrate.rerun import measured_times, recorded_times, replay_record, rerun
from blis_py.calibrate.step_bias import NONE, BiasCorrection, Corrected, StepBias, step_bias
from blis_py.calibrate.token_times import Seconds, TokenTimes
from blis_py.core.config import SchedulerConfig
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, LatencyModel
from blis_py.requests.table import Ints
from blis_py.traces.itl import Ragged
from blis_py.traces.steplog import StepLog

METRICS = tuple(
    (latency, statistic) for latency in ("TTFT", "TPOT", "ITL", "E2E") for statistic in ("mean", "p99")
)
CAUSES = {
    "workload": "arrivals, prefixes, order",
    "kv_capacity": "KV capacity",
    "token_counts": "token counts",
    "scheduler": "other settings",
    "decode": "decode steps",
    "prefill": "prefill steps",
    "mixed": "mixed steps",
    "padded": "padded steps",
    "host": "host overhead",
    "scatter": "scatter, and batches",
    "stamps": "token stamps",
    "client": "client and network",
}
"""In the order in which they are put right."""
NEGLIGIBLE = 0.001
"""Share of the measured value below which, in every metric, a cause counts as nothing."""

Nanoseconds = tuple[int, ...]
"""One per metric of an autopsy."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A wrong input, and its effect on each metric."""

    name: str
    """A key of `CAUSES`, or of `kinds.CAUSES`."""
    values_ns: Nanoseconds
    """The metrics once this cause, and those before it, are corrected."""
    shares_ns: Nanoseconds
    """Contribution to each metric of the prediction."""
    found: str
    """The difference, in words."""
    fix: str
    """A suggested fix; empty if there is none."""

    @property
    def title(self) -> str:
        return (CAUSES | kinds.CAUSES)[self.name]


@dataclass(frozen=True)
class Autopsy:
    """The error of a prediction, split by causes."""

    metrics: tuple[tuple[str, str], ...]
    """Latency and statistic; gaps between tokens (ITL) only if they are known."""
    requests: int
    """Requests that completed in every stage, on which the metrics are based."""
    left_out: int
    """Requests that completed in the engine, but not in every stage."""
    predicted_ns: Nanoseconds
    measured_ns: Nanoseconds
    causes: tuple[Cause, ...]
    """All possible causes for a run of its kind, in the order of `CAUSES`."""
    bias: StepBias
    batches: Parity
    """The engine's steps compared with those under the user's settings and latency model."""
    notes: tuple[str, ...] = ()

    @property
    def errors_ns(self) -> Nanoseconds:
        """Predicted minus measured."""
        return tuple(p - m for p, m in zip(self.predicted_ns, self.measured_ns, strict=True))

    def weight(self, cause: Cause) -> float:
        """Mean over the metrics of |share| relative to the measured value."""
        pairs = zip(cause.shares_ns, self.measured_ns, strict=True)
        return float(np.mean([abs(share) / measured if measured else 0.0 for share, measured in pairs]))

    def contributes(self, cause: Cause) -> bool:
        pairs = zip(cause.shares_ns, self.measured_ns, strict=True)
        return any(abs(share) > NEGLIGIBLE * measured for share, measured in pairs)

    @property
    def first(self) -> Cause:
        """The cause with the largest weight."""
        return max(self.causes, key=self.weight)

    def first_of(self, latency: str, statistic: str) -> Cause:
        """The cause with the largest share in one metric."""
        index = self.metrics.index((latency, statistic))
        return max(self.causes, key=lambda cause: abs(cause.shares_ns[index]))


def autopsy(
    measured: StepLog,
    predicted_config: SchedulerConfig,
    latency: LatencyModel,
    predicted_lengths: Lengths | None = None,
    *,
    predicted: TokenTimes | None = None,
    client: TokenTimes | None = None,
    blocks: Blocks | None = None,
    network_rtt_s: float = 0.0,
    warm_up_requests: int = 0,
    skip_first_s: float = 0.0,
) -> Autopsy:
    """Split the error of a prediction.

    Args:
        measured: the engine's step log.
        predicted_config: the settings that were simulated.
        latency: the latency model that was used.
        predicted_lengths: prompt and output tokens that were simulated, where they are others than the
            engine's, by request id.
        predicted: the simulated run itself. What its own arrivals, shared prefixes and priorities make of
            it is then a cause of its own; without it, the prediction is that for the recorded requests.
        client: the run as a client measured it; without it, the engine's own record counts.
        blocks: where answers come in blocks, how these were executed and the rounds they took when simulated.
        network_rtt_s: added to every predicted TTFT and E2E, as `calibrate` does.
        warm_up_requests: requests with a smaller id do not count in the metrics.
        skip_first_s: requests sent in this initial period do not count either.

    Raises:
        InputError: no request completed in every stage, or settings that cannot work; one of the two runs
            is of another kind of requests than the other.
    """
    engine_blocks = recorded_blocks(measured) if measured.kind else None
    check_kinds(engine_blocks, blocks)
    bias = step_bias(measured, latency)
    user = (predicted_config, latency, predicted_lengths, predicted)
    stages = list(_stages(measured, *user, client, blocks, engine_blocks, bias, network_rtt_s))
    completed = _counted(measured, warm_up_requests, skip_first_s)
    common = _in_every_stage(completed, stages)
    picked = [times.take(np.searchsorted(times.request_id, common)) for _, times in stages]
    metrics, values, notes = _values(picked)
    batches = predicted_steps(
        measured, latency, config=predicted_config, lengths=predicted_lengths, blocks=blocks
    )
    compared = set(common.tolist())
    words = Findings(
        engine=scheduler_config(measured),
        simulated=predicted_config,
        recorded={i: lengths for i, lengths in recorded_lengths(measured).items() if i in compared},
        lengths=predicted_lengths,
        bias=bias,
        batches=batches,
        own_workload=predicted is not None,
        own_client=client is not None,
        engine_blocks=engine_blocks,
        simulated_blocks=blocks,
    )
    return Autopsy(
        metrics=metrics,
        requests=len(common),
        left_out=len(completed) - len(common),
        predicted_ns=values[0],
        measured_ns=values[-1],
        causes=tuple(_causes([name for name, _ in stages], metrics, values, words)),
        bias=bias,
        batches=batches,
        notes=notes,
    )


def _counted(log: StepLog, warm_up_requests: int, skip_first_s: float) -> Ints:
    """Ids of the requests that completed in the engine, without those to be left out."""
    times = measured_times(log)
    late = times.sent_s - times.sent_s.min(initial=np.inf) >= skip_first_s
    ids: Ints = times.request_id[(times.request_id >= warm_up_requests) & late]
    return ids


def _in_every_stage(completed: Ints, stages: list[tuple[str, TokenTimes]]) -> Ints:
    common = completed
    for _, times in stages:
        common = np.intersect1d(common, times.request_id)
    if not len(common):
        fix = "calibrate against the simulation of the same requests"
        raise InputError("no request completed in the engine and in every stage of the autopsy", fix=fix)
    return common


def _causes(
    names: list[str], metrics: tuple[tuple[str, str], ...], values: list[Nanoseconds], words: Findings
) -> Iterator[Cause]:
    """The effect of each stage after the first."""
    for name, before, after in zip(names[1:], values, values[1:], strict=False):
        shares = tuple(b - a for b, a in zip(before, after, strict=True))
        finding, fix = words.of(name, dict(zip(metrics, shares, strict=True)))
        yield Cause(name, after, shares, finding, fix)


def _stages(
    log: StepLog,
    config: SchedulerConfig,
    latency: LatencyModel,
    lengths: Lengths | None,
    predicted: TokenTimes | None,
    client: TokenTimes | None,
    blocks: Blocks | None,
    engine_blocks: Blocks | None,
    bias: StepBias,
    rtt_s: float,
) -> Iterator[tuple[str, TokenTimes]]:
    """The prediction, then the result after each correction; equal stages are simulated once."""
    engine, nothing = scheduler_config(log), FrontendDelays()

    def simulated(
        model: LatencyModel,
        settings: SchedulerConfig,
        executed: Blocks | None,
        of: Lengths | None = None,
    ) -> TokenTimes:
        again = rerun(log, model, config=settings, lengths=of, blocks=executed)
        return _at_client(again, nothing, rtt_s)

    now = simulated(latency, config, blocks, lengths)
    yield "predicted", now if predicted is None else _at_client(predicted, nothing, rtt_s)
    yield "workload", now
    settings = replace(config, num_kv_blocks=engine.num_kv_blocks, block_size=engine.block_size)
    if settings != config:
        now = simulated(latency, settings, blocks, lengths)
    yield "kv_capacity", now
    if lengths:
        now = simulated(latency, settings, blocks)
    yield "token_counts", now
    mine = costly = blocks
    if blocks is not None and engine_blocks is not None:
        mine = replace(blocks, rounds=engine_blocks.rounds)
        costly = replace(engine_blocks, costs=blocks.costs)
        if mine != blocks:
            now = simulated(latency, settings, mine)
        yield "rounds", now
    if (settings, mine) != (engine, costly):
        now = simulated(latency, engine, costly)
    yield "scheduler", now
    gpu: dict[str, BiasCorrection] = {}
    for regime in bias.gpu:
        if bias.gpu[regime].steps and bias.gpu[regime].correction != NONE:
            gpu[regime] = bias.gpu[regime].correction
            now = simulated(Corrected(latency, dict(gpu), NONE, bias.buckets), engine, costly)
        yield regime, now
    if bias.host.correction != NONE or costly != engine_blocks:
        now = simulated(Corrected(latency, gpu, bias.host.correction, bias.buckets), engine, engine_blocks)
    yield "host", now
    yield "scatter", _at_client(recorded_times(log, replay_record(log), "replay"), latency.frontend, rtt_s)
    own = measured_times(log)
    yield "stamps", _at_client(own, latency.frontend, rtt_s)
    yield "client", own if client is None else client


def _served_together(times: TokenTimes) -> Seconds:
    """For each request the number of requests in progress at its first token, in the engine's time."""
    first_ns, last_ns = (np.rint((times.sent_s + s) * 1e9) for s in (times.ttft_s, times.e2e_s))
    begun = np.sort(first_ns).searchsorted(first_ns, side="right")
    counts: Seconds = (begun - np.sort(last_ns).searchsorted(first_ns)).astype(np.float64)
    return counts


def _at_client(times: TokenTimes, frontend: FrontendDelays, rtt_s: float) -> TokenTimes:
    """Times including the delays of front end and network."""
    around_s: Any = (frontend.before_enqueue_ns + frontend.behind_ns) / 1e9
    if frontend.behind_seq_ns:
        around_s = around_s + frontend.behind_seq_ns / 1e9 * _served_together(times)
    if times.prompt_tokens is not None:
        around_s = around_s + frontend.prompt_token_ns / 1e9 * times.prompt_tokens
    token_s = frontend.per_token_ns / 1e9
    gaps = times.gaps
    return replace(
        times,
        ttft_s=times.ttft_s + (around_s + token_s + rtt_s),
        e2e_s=times.e2e_s + (around_s + token_s * times.output_tokens + rtt_s),
        gaps=Ragged(gaps.values + token_s, gaps.counts) if gaps is not None else None,
    )


def _values(
    stages: list[TokenTimes],
) -> tuple[tuple[tuple[str, str], ...], list[Nanoseconds], tuple[str, ...]]:
    """The metrics defined in every stage, their values there, and notes."""
    notes = []
    if stages[0].gaps is None:
        notes.append("the simulated run has no ITL: that of the recorded requests is used")
        stages = [replace(stages[0], gaps=stages[1].gaps), *stages[1:]]
    if stages[-1].gaps is None:
        notes.append("the client has no ITL: that of the engine is used")
        stages = [*stages[:-1], replace(stages[-1], gaps=stages[-2].gaps)]
    tables = [_metrics_ns(times) for times in stages]
    metrics = tuple(metric for metric in METRICS if all(metric in table for table in tables))
    return metrics, [tuple(table[metric] for metric in metrics) for table in tables], tuple(notes)


def _metrics_ns(times: TokenTimes) -> dict[tuple[str, str], int]:
    """Every defined metric, to the nanosecond."""
    assert times.gaps is not None
    columns = {"TTFT": times.ttft_s, "TPOT": times.tpot_s, "ITL": times.gaps.values, "E2E": times.e2e_s}
    metrics = {}
    for latency, column in columns.items():
        known = column[~np.isnan(column)]
        if len(known):
            metrics[latency, "mean"] = round(float(known.mean()) * 1e9)
            metrics[latency, "p99"] = round(float(np.percentile(known, 99)) * 1e9)
    return metrics


def as_dict(result: Autopsy) -> dict[str, Any]:
    """Plain data: nanoseconds by metric, and null for undefined figures."""
    names = [f"{latency.lower()}_{statistic}" for latency, statistic in result.metrics]

    def named(values: Nanoseconds) -> dict[str, int]:
        return dict(zip(names, values, strict=True))

    def number(value: float) -> float | None:
        return None if np.isnan(value) else value

    groups = {**result.bias.gpu, "host": result.bias.host}
    first = result.batches.first
    return {
        "requests": result.requests,
        "left_out": result.left_out,
        "predicted_ns": named(result.predicted_ns),
        "measured_ns": named(result.measured_ns),
        "error_ns": named(result.errors_ns),
        "first_cause": result.first.name,
        "first_cause_of": {
            name: result.first_of(*metric).name for name, metric in zip(names, result.metrics, strict=True)
        },
        "causes": [
            {
                "cause": cause.name,
                "title": cause.title,
                "contributes": result.contributes(cause),
                "share_ns": named(cause.shares_ns),
                "value_ns": named(cause.values_ns),
                "found": cause.found,
                "fix": cause.fix,
            }
            for cause in result.causes
        ],
        "steps": {
            name: {
                "steps": bias.steps,
                "measured_ns": bias.measured_ns,
                "predicted_ns": bias.predicted_ns,
                "error": number(bias.error),
                "mape": number(bias.mape),
            }
            for name, bias in groups.items()
        },
        "batches": {
            "steps": result.batches.steps,
            "identical": result.batches.identical,
            "share": result.batches.share,
            "first_different_step": None if first is None else first.step,
            "part": None if first is None else first.part,
        },
        "notes": list(result.notes),
    }
