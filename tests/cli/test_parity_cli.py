"""`blis parity`: a recorded run through the simulator's scheduler, step by step."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blis_py.calibrate.composition import Composition
from blis_py.calibrate.parity import Difference, Parity, replay_steps
from blis_py.calibrate.parity_words import explain
from blis_py.core.config import SchedulerConfig
from blis_py.core.features import FEATURE_NAMES, StepFeatures
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.traces.steplog import StepLog, write_step_log
from blis_py.traces.steplog_columns import REQUEST_KINDS, SCHEMA, SEGMENTS, STEP_KINDS

Blis = Callable[..., tuple[int, str, str]]
CONFIG = SchedulerConfig(num_kv_blocks=60, max_model_len=512, max_num_seqs=4, max_num_batched_tokens=64)
STEP_NS = 1_000_000


def recorded(count: int = 9, output: int = 12) -> StepLog:
    """A run of the scheduler core in a plain loop, where every step takes 1 ms."""
    scheduler = Scheduler(CONFIG, track_longest=True)
    requests = [Request(f"request_{i}", i * 3 * STEP_NS, 40 + i, output, output, row=i) for i in range(count)]
    waiting, enqueued, now_ns = list(requests), [], 0
    steps: dict[str, list[Any]] = {name: [] for name in STEP_KINDS}
    while waiting or scheduler.waiting or scheduler.running:
        while waiting and waiting[0].arrival_ns <= now_ns:
            scheduler.add(waiting.pop(0))
            enqueued.append(now_ns)
        step = scheduler.schedule(now_ns)
        assert step is not None
        row: dict[str, Any] = dict.fromkeys((*SEGMENTS, "gpu_ns", "bucket", "failed"), 0)
        row |= {name: getattr(step.features, name) for name in FEATURE_NAMES}
        row |= {
            "step": len(steps["step"]),
            "start_ns": now_ns,
            "end_ns": now_ns + STEP_NS,
            "regime": "eager",
            "active_experts": -1,
            "waiting": len(scheduler.waiting),
            "running": len(scheduler.running),
            "kv_blocks": scheduler.blocks_in_use(),
            "prefill_ids": tuple(request.row for request, _ in step.prefills),
            "prefill_chunks": tuple(tokens for _, tokens in step.prefills),
            "decode_ids": tuple(request.row for request in scheduler.decoding),
            "admitted_ids": tuple(request.row for request in step.admitted),
            "preempted_ids": tuple(request.row for request in step.preempted),
        }
        row["finished_ids"] = tuple(request.row for request in scheduler.finish(step, 1))
        now_ns += STEP_NS
        for name, value in row.items():
            steps[name].append(value)
    table = {
        "number": [r.row for r in requests],
        "id": [r.id for r in requests],
        "arrival_ns": [r.arrival_ns for r in requests],
        "enqueue_ns": enqueued,
        "prompt_tokens": [r.prompt_tokens for r in requests],
        **{name: [output] * count for name in ("output_tokens", "max_tokens")},
        **{name: [0] * count for name in ("priority", "cached_tokens", "preemptions", "prompt_blocks")},
        **{name: [-1] * count for name in ("deadline_ns", "abort_ns", "first_token_ns", "finish_ns")},
        "finish_reason": ["length"] * count,
        "block_keys": [()] * count,
    }
    assert table.keys() == REQUEST_KINDS.keys()
    return StepLog({"schema": SCHEMA, "scheduler": dataclasses.asdict(CONFIG)}, steps, table)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    write_step_log(recorded(), tmp_path / "steps.csv.gz")
    return tmp_path / "steps.csv.gz"


def swapped(log: StepLog, step: int) -> StepLog:
    """As if the engine had decoded in another order in one step."""
    log.steps["decode_ids"][step] = log.steps["decode_ids"][step][::-1]
    return log


def busy_step(log: StepLog) -> int:
    return next(i for i, ids in enumerate(log.steps["decode_ids"]) if len(ids) == 3)


def test_the_batches_of_a_faithful_log_are_all_identical(log_file: Path, blis: Blis) -> None:
    code, out, _ = blis("parity", log_file, "--require", 100)
    figures = json.loads(out)
    assert code == 0
    assert figures["share"] == 1
    assert figures["steps"] == figures["identical"] > 20
    assert figures["first_difference"] is None
    assert "same batch in every step" in figures["explanation"]


def test_a_folder_stands_for_the_step_log_in_it(log_file: Path, blis: Blis) -> None:
    assert blis("parity", log_file.parent)[1] == blis("parity", log_file)[1]


def test_a_difference_is_reported_and_is_a_failure_only_where_all_steps_are_required(
    tmp_path: Path, blis: Blis
) -> None:
    log = recorded()
    step = busy_step(log)
    write_step_log(swapped(log, step), tmp_path / "steps.csv")
    code, out, _ = blis("parity", tmp_path)
    assert code == 0
    figures = json.loads(out)
    assert figures["identical"] == figures["steps"] - 1
    assert figures["first_difference"] == {"step": step, "part": "decodes"}
    assert f"step {step} (at {step:.3f} ms" in figures["explanation"]
    assert "another order" in figures["explanation"]
    code, out, error = blis("parity", tmp_path, "--require", "99.99", "--format", "table")
    assert code == 1
    assert f"{figures['identical']} of {figures['steps']} steps are identical" in out
    assert error.startswith("error: ")
    assert blis("parity", tmp_path, "--require", 90)[0] == 0


def test_what_is_nearly_everything_is_not_called_everything(log_file: Path, blis: Blis) -> None:
    from blis_py.cli.verbs.parity import _percent

    assert _percent(0.99999) == "99.99 %"
    assert _percent(1.0) == "100 %"


@pytest.mark.parametrize(
    ("part", "engine", "simulator", "words"),
    [
        ("decodes", (0, 1), (0, 1, 2), ["only the simulator decodes request_2"]),
        ("admitted", (0,), (1,), ["only the engine admits request_0", "only the simulator admits request_1"]),
        ("preempted", (3,), (), ["only the engine preempts request_3"]),
        ("chunks", (64,), (40, 24), ["by 64 tokens in the engine, by 40, 24 in the simulator"]),
        (
            "features",
            StepFeatures(decode_kv_tokens=1300),
            StepFeatures(decode_kv_tokens=1400),
            ["decode_kv_tokens is 1,300 and 1,400"],
        ),
        ("decodes", tuple(range(9)), (), ["request_5 and 3 more"]),
    ],
)
def test_a_difference_in_words(part: str, engine: object, simulator: object, words: list[str]) -> None:
    log = recorded()
    report = explain(Parity(len(log), 0, Difference(2, part, engine, simulator), None), log)
    for word in words:
        assert word in report


def test_a_missing_step_and_a_failed_one_in_words() -> None:
    log = recorded()
    batch = Composition((), (), (), (), (), StepFeatures())
    steps = len(log)
    shorter = Parity(steps, 0, Difference(5, "steps", batch, None), None)
    assert "the engine has a further step, the simulator has none left" in explain(shorter, log)
    longer = Parity(steps, steps, Difference(steps, "steps", None, batch), None)
    assert "after the engine's last step" in explain(longer, log)
    assert "A forward failed in step 7" in explain(Parity(7, 7, None, 7), log)


def test_the_words_fit_what_a_replay_finds() -> None:
    log = recorded()
    step = busy_step(log)
    first = replay_steps(swapped(log, step)).first
    assert first is not None
    names = [f"request_{number}" for number in log.steps["decode_ids"][step]]
    assert ", ".join(names) in explain(Parity(1, 0, first, None), log)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "no step log given"),
        (("nowhere.csv",), "nowhere.csv"),
        (("{folder}",), "no step log in this folder"),
        (("steps.csv", "other.csv"), "does not belong here"),
        (("steps.csv", "--require", 101), "0 to 100"),
        (("steps.csv", "--format", "tabel"), "table"),
    ],
)
def test_wrong_arguments_are_bad_input(
    arguments: tuple[object, ...], complaint: str, blis: Blis, tmp_path: Path
) -> None:
    code, out, error = blis("parity", *(str(a).format(folder=tmp_path) for a in arguments))
    assert (code, out) == (2, "")
    assert complaint in error


@pytest.mark.parametrize(
    ("column", "value"),
    [("prompt_tokens", 0), ("prompt_tokens", 2**31), ("output_tokens", -1), ("max_tokens", -1)],
)
def test_a_request_whose_length_can_be_none_is_refused(
    tmp_path: Path, blis: Blis, column: str, value: int
) -> None:
    log = recorded()
    log.requests[column] = [value, *log.requests[column][1:]]
    write_step_log(log, tmp_path / "steps.csv")
    code, _, err = blis("parity", tmp_path)
    assert code == 2
    assert f"steps.requests.csv: {column}: must be at " in err


def test_parity_needs_no_torch(log_file: Path, blis: Blis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert blis("parity", log_file)[0] == 0
