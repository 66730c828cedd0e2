"""A recorded run through the simulator, and when the engine itself emitted its tokens."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from blis_py.calibrate.kinds import Blocks
from blis_py.calibrate.playbacks import measured, predicted
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
    """Serves the recorded requests again, with step times from a latency model.

    They come when they came, with their lengths, priorities, deadlines and shared blocks.

    Args:
        config: other settings than the engine's.
        lengths: other prompt and output lengths than those recorded, see `recorded_requests`.
        blocks: where answers come in blocks, another mode or other rounds than the engine's.
        single_step: simulate every decode step by itself. Slower, same result.

    Returns:
        The requests that completed.

    Raises:
        InputError: the log does not tell the scheduler's settings, or the settings cannot work.
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
    """`rerun` with everything that a simulation records; rows as in the log's requests."""
    return predicted(
        log, latency, config=config, lengths=lengths, blocks=blocks, single_step=single_step
    ).record()


def replay_record(log: StepLog) -> RunRecord:
    """The recorded run with its own step times, requests seen at the engine's step boundaries.

    Its batches are the engine's as long as `replay_steps` says so.
    """
    return measured(log).record()


def recorded_times(log: StepLog, record: RunRecord, source: str) -> TokenTimes:
    """The completed requests of a record whose rows are those of the log, under their own ids."""
    return _by_id(log, token_times(record, source))


def measured_times(log: StepLog) -> TokenTimes:
    """When the engine emitted the tokens of the requests that completed, by its own clock and record.

    What a client, or anything in front of the engine, adds is not in it.
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
    )
    return _by_id(log, times)


def _by_id(log: StepLog, times: TokenTimes) -> TokenTimes:
    """Requests were known by their rows in the log."""
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
    """What each request does in the next step it is part of."""
    for i in reversed(range(len(log))):
        if steps["failed"][i]:
            continue
        end_ns, prefills = steps["end_ns"][i], steps["prefill_ids"][i]
        finished, admitted = steps["finished_ids"][i], steps["admitted_ids"][i]
        rows = steps["emitted_rows"][i] - steps["decode_seqs"][i]
        # Whose prompt is complete decodes next, or is over. Where neither happened, for it was preempted or
        # given up in between, the number of emitted rows tells, and the prompts are cut from the last one on.
        sure = {n for n in prefills if n in finished or then.get(n) == "decode"}
        unsure = [n for n in prefills if n not in sure and then.get(n) != "prefill"]
        for number in [*sure, *unsure[: max(rows - len(sure), 0)], *steps["decode_ids"][i]]:
            ends[number].append(end_ns)
        then |= dict.fromkeys(prefills, "prefill") | dict.fromkeys(admitted, "begin")
        then |= dict.fromkeys(steps["decode_ids"][i], "decode")
    return {number: times[::-1] for number, times in ends.items()}
