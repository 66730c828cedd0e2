"""Columns of a step log, by name, with their types."""

from __future__ import annotations

from collections.abc import Iterable

from blis_py.core.features import FEATURE_NAMES, SELDOM, further_names, is_whole
from blis_py.core.kinds import IN_BLOCKS

SCHEMA = 1
"""Incremented when a column changes its meaning or is removed, but not for new columns."""
Kind = str
"""Column type: `int`, `float`, `text`, or `ints` (a list)."""

SEGMENTS = ("schedule_ns", "prepare_ns", "launch_ns", "sample_ns", "finish_ns")
"""Host time of a step by activity. `launch_ns` on the CPU is the forward itself; `sample_ns` contains the
wait for the device."""
FEATURE_KINDS: dict[str, Kind] = {name: "int" if is_whole(name) else "float" for name in FEATURE_NAMES}
STEP_KINDS: dict[str, Kind] = {
    "step": "int",  # index in the log
    "start_ns": "int",  # when the scheduler planned it: what had arrived by then was seen
    "end_ns": "int",  # with asynchronous scheduling, other steps are planned and finished in between
    **dict.fromkeys(SEGMENTS, "int"),
    "gpu_ns": "int",  # forward and sampling: CUDA events behind the copies; on the CPU launch_ns + sample_ns
    "regime": "text",  # graph or eager
    "bucket": "int",  # padded batch of a graph, else 0
    "waiting": "int",  # requests left in the queue when the step was planned
    "running": "int",
    "kv_blocks": "int",  # in use during the step
    "active_experts": "int",  # summed over sparse layers; -1 = not counted
    "failed": "int",  # 1: the forward raised an error, and its requests ended
    **FEATURE_KINDS,
    "prefill_ids": "ints",
    "prefill_chunks": "ints",  # tokens of each
    "decode_ids": "ints",
    "admitted_ids": "ints",
    "preempted_ids": "ints",
    "finished_ids": "ints",
}
REQUEST_KINDS: dict[str, Kind] = {
    "number": "int",  # as in the lists of the steps
    "id": "text",
    "arrival_ns": "int",
    "enqueue_ns": "int",  # the step boundary at which the scheduler first saw it
    "prompt_tokens": "int",
    "output_tokens": "int",  # emitted
    "max_tokens": "int",  # its limit; 0 = none
    "priority": "int",
    "deadline_ns": "int",
    "abort_ns": "int",  # the step boundary at which it was aborted; -1 = it was not
    "cached_tokens": "int",
    "preemptions": "int",
    "first_token_ns": "int",
    "finish_ns": "int",
    "finish_reason": "text",
    "prompt_blocks": "int",  # of the block keys, those of the prompt
    "block_keys": "ints",  # equal numbers = equal content up to the end of the block
}

BLOCK_FEATURES = tuple(name for name in IN_BLOCKS.names if name != "begins_batch")
"""The batch says which round begins it."""
BLOCK_STEP_KINDS: dict[str, Kind] = {
    "batch": "int",  # index of the batch it belongs to: rounds between two calls of the scheduler
    **dict.fromkeys(BLOCK_FEATURES, "int"),
    "committed_ids": "ints",  # requests whose block became final with it
}
TIMING_KINDS: dict[str, Kind] = {
    "launch_bound": "int",  # 1: the GPU waited for the host, so gpu_ns is what launching took
    "launching_ns": "int",  # host time from first to last launch, beside the GPU's work; 0 = not known
}
SELDOM_KINDS: dict[str, Kind] = dict.fromkeys(SELDOM, "int")
"""Optional features; a log has the column if any step has a value."""
MASK_KINDS: dict[str, Kind] = {
    "constrained_rows": "int",  # emitted rows that a grammar constrains
    "mask_ns": "int",  # host time for their masks, a part of sample_ns
    "mask_exposed_ns": "int",  # the part of it in which the device had nothing to do
}
"""Present if any row was constrained."""
MASK_REQUEST_KINDS: dict[str, Kind] = {
    "constrained": "int",  # 1: a grammar constrains its output
}
OVERLAP_KINDS: dict[str, Kind] = {
    "forward_start_ns": "int",  # with asynchronous scheduling: when the device began; -1 = never
    "forward_end_ns": "int",  # and was done with it
    "seen_ns": "int",  # when the next step was planned that could know its outcome
}
BLOCK_REQUEST_KINDS: dict[str, Kind] = {
    "block_rounds": "ints",  # forwards that each of its committed blocks took
}
_FURTHER = (
    TIMING_KINDS
    | SELDOM_KINDS
    | MASK_KINDS
    | MASK_REQUEST_KINDS
    | OVERLAP_KINDS
    | BLOCK_STEP_KINDS
    | BLOCK_REQUEST_KINDS
)
"""Optional columns."""


def kinds_of(always: dict[str, Kind], there: Iterable[str]) -> dict[str, Kind]:
    """Columns of a table: the required ones, and the optional ones present."""
    names = set(there)
    further = {name: "int" if is_whole(name) else "float" for name in further_names()}
    return always | {name: kind for name, kind in (_FURTHER | further).items() if name in names}
