"""A recorded run through the simulator, and when the engine itself emitted its tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blis_py.calibrate.diffusion_recorded import Blocks, recorded_blocks
from blis_py.calibrate.recorded import (
    COMPLETE,
    Lengths,
    MeasuredSteps,
    Recorded,
    recorded_requests,
    request_ids,
    requests_table,
    scheduler_config,
    serve,
)
from blis_py.calibrate.token_times import TokenTimes, token_times
from blis_py.cluster.recorder import InstanceLog, Recorder
from blis_py.core.config import SchedulerConfig
from blis_py.core.scheduler import Scheduler
from blis_py.latency.base import LatencyModel
from blis_py.metrics.record import RunRecord
from blis_py.traces.itl import Ragged
from blis_py.traces.steplog import StepLog
from blis_py.workload.table import Ints, Labels


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
        blocks: of block diffusion, another mode or other rounds than the engine's.
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
    if "diffusion" in log.meta:
        from blis_py.calibrate.diffusion_rerun import rerun_blocks

        executed = recorded_blocks(log) if blocks is None else blocks
        return rerun_blocks(log, latency, executed, config=config or scheduler_config(log), lengths=lengths)
    scheduler = Scheduler(config or scheduler_config(log), track_longest=latency.uses_max_context)
    recorded = recorded_requests(log, block_size=scheduler.config.block_size, lengths=lengths)
    before_ns = latency.frontend.before_enqueue_ns
    ready_ns = [one.request.arrival_ns + before_ns for one in recorded]
    return _record(scheduler, recorded, ready_ns, latency, single_step)


def replay_record(log: StepLog) -> RunRecord:
    """The recorded run with its own step times, requests seen at the engine's step boundaries.

    Its batches are the engine's as long as `replay_steps` says so.
    """
    if "diffusion" in log.meta:
        from blis_py.calibrate.diffusion_rerun import replay_blocks

        return replay_blocks(log)
    scheduler = Scheduler(scheduler_config(log), track_longest=True)
    latency = MeasuredSteps(log, scheduler)
    return _record(scheduler, recorded_requests(log), log.requests["enqueue_ns"], latency, single_step=True)


def _record(
    scheduler: Scheduler,
    recorded: Sequence[Recorded],
    ready_ns: Sequence[int],
    latency: LatencyModel,
    single_step: bool,
) -> RunRecord:
    recorder = Recorder(requests_table(recorded), latency.frontend)
    recorder.ready_ns = np.array(ready_ns, dtype=np.int64)
    recorder.instance[:] = 0
    log = InstanceLog(recorder, scheduler, record_steps=False)
    end_ns = serve(scheduler, recorded, ready_ns, latency, log, single_step=single_step)
    return recorder.record(end_ns)


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
