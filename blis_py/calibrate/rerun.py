"""Simulation of a recorded run, and the engine's own token times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from blis_py.calibrate._playbacks import measured, predicted
from blis_py.calibrate.kinds import Blocks
from blis_py.calibrate.recorded import COMPLETE, Lengths, request_ids
from blis_py.calibrate.token_times import TokenTimes, token_times
from blis_py.core.config import SchedulerConfig
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import RunRecord
from blis_py.requests.table import Ints, Labels
from blis_py.traces.itl import Ragged
from blis_py.traces.steplog import StepLog


def rerun(
    log: StepLog,
    latency: LatencyModel,
    *,
    config: SchedulerConfig | None = None,
    lengths: Lengths | None = None,
    blocks: Blocks | None = None,
    single_step: bool = False,
) -> TokenTimes:
    """Serve the recorded requests again, with step times from a latency model.

    They arrive at their recorded times, with their lengths, priorities, deadlines and shared blocks.

    Args:
        config: other settings than the engine's.
        lengths: other prompt and output lengths than those recorded, see `recorded_requests`.
        blocks: where answers come in blocks, another mode or other rounds than the engine's.
        single_step: simulate every decode step by itself. Slower, same result.

    Returns:
        The requests that completed.

    Raises:
        InputError: the log lacks the scheduler's settings, or the settings are invalid.
    """
    record = rerun_record(
        log, latency, config=config, lengths=lengths, blocks=blocks, single_step=single_step
    )
    return recorded_times(log, record, f"{latency.name} on the recorded requests")


def rerun_record(
    log: StepLog,
    latency: LatencyModel,
    *,
    config: SchedulerConfig | None = None,
    lengths: Lengths | None = None,
    blocks: Blocks | None = None,
    single_step: bool = False,
) -> RunRecord:
    """`rerun` with the full record of the simulation; rows as in the log's requests."""
    return predicted(
        log, latency, config=config, lengths=lengths, blocks=blocks, single_step=single_step
    ).record()


def replay_record(log: StepLog) -> RunRecord:
    """The recorded run with its own step times; requests arrive at the engine's step boundaries.

    Its batches are the engine's as long as `replay_steps` confirms it.
    """
    return measured(log).record()


def recorded_times(log: StepLog, record: RunRecord, source: str) -> TokenTimes:
    """The completed requests of a record whose rows are those of the log, under their own ids."""
    return _by_id(log, token_times(record, source))


def measured_times(log: StepLog) -> TokenTimes:
    """Token times of completed requests by the engine's own clock and record.

    Delays of a client, or of anything else in front of the engine, are not included.
    """
    table = log.requests
    tokens = _token_ends(log)
    rows = [row for row, reason in enumerate(table["finish_reason"]) if reason in COMPLETE]
    ends = [np.array(tokens.get(table["number"][row], ()), dtype=np.int64) for row in rows]
    gaps = [np.diff(of_one) for of_one in ends]

    def column(name: str) -> Ints:
        return np.array(table[name], dtype=np.int64)[rows]

    sent_ns = column("arrival_ns")
    times = TokenTimes(
        source="the engine's step log",
        request_id=np.array(rows, dtype=np.int64),
        slo_class=Labels.constant("", len(rows)),
        output_tokens=column("output_tokens"),
        sent_s=sent_ns / 1e9,
        ttft_s=(column("first_token_ns") - sent_ns) / 1e9,
        e2e_s=(column("finish_ns") - sent_ns) / 1e9,
        incomplete=len(table["id"]) - len(rows),
        gaps=Ragged(
            np.concatenate([*gaps, np.zeros(0, np.int64)]) / 1e9, np.array([len(g) for g in gaps], np.int64)
        ),
        prompt_tokens=column("prompt_tokens"),
    )
    return _by_id(log, times)


def _by_id(log: StepLog, times: TokenTimes) -> TokenTimes:
    """Times with the log's request ids in place of row numbers."""
    ids = request_ids(log)[times.request_id]
    return replace(times, request_id=ids).take(np.argsort(ids, kind="stable"))


def _token_ends(log: StepLog) -> dict[int, list[int]]:
    """The ends of the steps that emitted each request's tokens, or blocks, in order, by number."""
    steps, ends = log.steps, defaultdict[int, list[int]](list)
    if "committed_ids" in steps:
        for numbers, end_ns in zip(steps["committed_ids"], steps["end_ns"], strict=True):
            for number in numbers:
                ends[number].append(end_ns)
        return ends
    then: dict[int, str] = {}
    """Activity of each request in the next step it is part of."""
    for i in reversed(range(len(log))):
        if steps["failed"][i]:
            continue
        end_ns, prefills = steps["end_ns"][i], steps["prefill_ids"][i]
        finished, admitted = steps["finished_ids"][i], steps["admitted_ids"][i]
        rows = steps["emitted_rows"][i] - steps["decode_seqs"][i]
        # A request with a complete prompt decodes next, or has ended. If neither happened, after a preemption
        # or timeout in between, the number of emitted rows decides, and prompts are cut from the last one on.
        sure = {n for n in prefills if n in finished or then.get(n) == "decode"}
        unsure = [n for n in prefills if n not in sure and then.get(n) != "prefill"]
        for number in [*sure, *unsure[: max(rows - len(sure), 0)], *steps["decode_ids"][i]]:
            ends[number].append(end_ns)
        then |= dict.fromkeys(prefills, "prefill") | dict.fromkeys(admitted, "begin")
        then |= dict.fromkeys(steps["decode_ids"][i], "decode")
    return {number: times[::-1] for number, times in ends.items()}
