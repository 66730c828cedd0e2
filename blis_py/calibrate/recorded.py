"""Contents of a step log: settings, requests and step times, in the simulator's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

import numpy as np

from blis_py.config.layers import coerce
from blis_py.core.blocks import block_count
from blis_py.core.checks import check_scheduler_config
from blis_py.core.config import SchedulerConfig
from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.requests.table import Ints, RequestTable
from blis_py.traces.steplog import Numbers, StepLog

COMPLETE = ("stop", "length")
"""Reasons with which a request ends with its complete answer."""

Lengths = Mapping[int, tuple[int, int]]
"""Prompt and output tokens by request id (see `request_ids`), in place of the recorded ones."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A request as it arrived."""

    request: Request
    """A new request; its `row` is its index in the log's table."""
    enqueue_ns: int
    """The step boundary at which the engine's scheduler first saw it."""
    published: Numbers
    """Block keys of its answer, known at its end."""


def scheduler_config(log: StepLog) -> SchedulerConfig:
    """Settings of the engine's scheduler.

    Raises:
        InputError: the log lacks them, or contains an unsupported one.
    """
    settings = log.meta.get("scheduler")
    if not isinstance(settings, dict):
        raise InputError("the step log lacks the scheduler's settings", key="scheduler")
    kinds = get_type_hints(SchedulerConfig)
    values: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in kinds:
            raise InputError("unknown setting in the step log", key=f"scheduler.{name}")
        try:
            values[name] = coerce(value, kinds[name])
        except InputError as error:
            raise InputError(error.problem, key=f"scheduler.{name}", value=value) from None
    for field in fields(SchedulerConfig):
        if field.default is MISSING and field.name not in values:
            raise InputError("the step log lacks the setting", key=f"scheduler.{field.name}")
    config = SchedulerConfig(**values)
    check_scheduler_config(config)
    return config


def request_ids(log: StepLog) -> Ints:
    """Number of each request in a trace of the run: that in `request_<number>`, else its index there."""
    names: list[str] = log.requests["id"]
    parts = [name.removeprefix("request_") for name in names]
    plain = all(
        part.isdecimal() and name == f"request_{int(part)}" for name, part in zip(names, parts, strict=True)
    )
    return np.array([int(part) for part in parts] if plain else log.requests["number"], dtype=np.int64)


def recorded_lengths(log: StepLog) -> dict[int, tuple[int, int]]:
    """Prompt and output tokens of every request, by id."""
    lengths = zip(log.requests["prompt_tokens"], log.requests["output_tokens"], strict=True)
    return dict(zip(request_ids(log).tolist(), lengths, strict=True))


def recorded_requests(
    log: StepLog, *, block_size: int | None = None, lengths: Lengths | None = None
) -> list[RecordedRun]:
    """The requests of a log, in order.

    An abort is a deadline. A request that was still present at the end of the log, or ended with an error,
    times out then: the length of its answer is not known.

    Args:
        block_size: of the scheduler that will serve them; the log's when `None`. With a size that is no
            multiple of the log's, a shared prefix counts only as far as whole blocks of the log reach.
        lengths: lengths in place of the recorded ones, for requests with a complete answer. For a prompt of
            another length, the blocks in common with the recorded one can be shared.
    """
    table = log.requests
    recorded_size = scheduler_config(log).block_size
    size = block_size or recorded_size
    last_ns = max([0, *log.steps["end_ns"], *table["finish_ns"]])
    ids = request_ids(log).tolist() if lengths else []
    constrained = table.get("constrained") or [0] * len(log.requests["id"])
    recorded = []
    for row, reason in enumerate(table["finish_reason"]):
        complete = reason in COMPLETE
        prompt, output, limit = (
            table[name][row] for name in ("prompt_tokens", "output_tokens", "max_tokens")
        )
        keys, prompt_blocks = table["block_keys"][row], table["prompt_blocks"][row]
        same_prompt = True
        if lengths and complete and ids[row] in lengths:
            new_prompt, new_output = lengths[ids[row]]
            same_prompt = new_prompt == prompt
            limit = new_output if limit == output else limit and max(limit, new_output)
            prompt, output = new_prompt, new_output
        prompt_blocks = min(prompt_blocks, prompt // recorded_size)
        until = [ns for ns in (table["deadline_ns"][row], table["abort_ns"][row]) if ns >= 0]
        if reason in ("error", ""):
            until.append(table["finish_ns"][row] if reason else last_ns)
        request = Request(
            table["id"][row],
            table["arrival_ns"][row],
            prompt,
            output if complete else None,
            limit,
            table["priority"][row],
            min(until, default=-1),
            _in_blocks(keys[:prompt_blocks], recorded_size, size),
            row,
            ends_by_eos=reason == "stop",
            constrained=bool(constrained[row]),
        )
        published = keys[prompt_blocks:] if same_prompt and size == recorded_size else ()
        recorded.append(RecordedRun(request, table["enqueue_ns"][row], published))
    return recorded


def requests_table(recorded: Sequence[RecordedRun]) -> RequestTable:
    """The requests as a table for the recorder of a simulation; rows as in the log."""
    requests = [one.request for one in recorded]

    def column(values: Sequence[int]) -> Ints:
        return np.array(values, dtype=np.int64)

    return RequestTable.build(
        column([r.arrival_ns for r in requests]),
        column([r.prompt_tokens for r in requests]),
        column([r.output_tokens or 0 for r in requests]),
        max_tokens=column([r.max_tokens for r in requests]),
        deadline_ns=column([r.deadline_ns for r in requests]),
        request_id=[r.id for r in requests],
    )


def _in_blocks(keys: Numbers, recorded_size: int, size: int) -> Sequence[object]:
    """Keys for blocks of another size: the end of each block, and the recorded block that contains it."""
    if size == recorded_size:
        return keys
    count = len(keys) * recorded_size // size
    return [(keys[block_count(end, recorded_size) - 1], end) for end in range(size, count * size + 1, size)]


def step_durations_ns(log: StepLog) -> Ints:
    """Duration of each step in ns: until the next one began if any request was present in between, else until
    its end.

    So the work of a synchronous loop between two steps belongs to the first of them. With asynchronous
    scheduling a step begins when the previous one ends, or when it is planned if none is in flight, and ends
    when the next step that can know its outcome is planned.
    """
    if "seen_ns" in log.steps:
        seen_ns = log.column("seen_ns")
        begun = np.maximum(log.column("start_ns"), np.append(0, seen_ns[:-1])[: len(seen_ns)])
        periods_ns: Ints = seen_ns - begun
        return periods_ns
    starts, ends = log.column("start_ns"), log.column("end_ns")
    arrivals = np.sort(np.array(log.requests["enqueue_ns"], dtype=np.int64))
    departures = np.array(log.requests["finish_ns"], dtype=np.int64)
    # A timeout after the last step happened at the boundary behind it.
    following = np.append(starts[1:], max([*ends[-1:].tolist(), *departures.tolist()], default=0))[
        : len(starts)
    ]
    departures = np.sort(departures[departures >= 0])
    unfinished = np.searchsorted(arrivals, starts, side="right") - np.searchsorted(
        departures, ends, side="right"
    )
    durations_ns: Ints = np.where(unfinished > 0, following, ends) - starts
    return durations_ns
