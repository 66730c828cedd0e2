"""Sessions of a workload spec whose turns wait for answers: their requests, and what comes of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import blis_py as blis
from blis_py.cli import main
from blis_py.errors import InputError
from blis_py.requests.sessions import waits
from blis_py.workload import generate
from blis_py.workload.generate import generate_loops
from blis_py.workload.spec import WorkloadSpec

MODEL: dict[str, Any] = {"model": "llama-3.1-8b", "seed": 3}
LIMITS: dict[str, Any] = {"block_size": 32, "max_num_seqs": 64}
TURNS: dict[str, Any] = {
    "max_rounds": 6,
    "rounds_distribution": {"type": "exponential", "params": {"mean": 3}},
    "think_time_ms_distribution": {"type": "exponential", "params": {"mean": 700}},
    "context_growth": "accumulate",
}
CHAT: dict[str, Any] = {
    "id": "chat",
    "rate_fraction": 2,
    "arrival": {"process": "poisson"},
    "input_distribution": {"type": "exponential", "params": {"mean": 80}},
    "output_distribution": {"type": "exponential", "params": {"mean": 40}},
    "prefix_group": "sys",
    "prefix_length": 100,
}
PLAIN = CHAT | {"id": "plain", "rate_fraction": 1, "prefix_group": "", "prefix_length": 0}
USERS = {k: v for k, v in PLAIN.items() if k not in ("rate_fraction", "arrival")} | {
    "id": "users",
    "concurrency": 3,
}


def chat(**multi_turn: Any) -> dict[str, Any]:
    return CHAT | {"reasoning": {"multi_turn": TURNS | multi_turn}}


def spec(*clients: dict[str, Any], **top: Any) -> WorkloadSpec:
    values = {"aggregate_rate": 6.0, "num_requests": 400, "clients": list(clients)} | top
    return WorkloadSpec.model_validate(values)


def written(folder: Path, *clients: dict[str, Any], **top: Any) -> str:
    values = {"version": "2", "aggregate_rate": 6.0, "num_requests": 120, "clients": list(clients)} | top
    (folder / "spec.yaml").write_text(yaml.safe_dump(values))
    return str(folder / "spec.yaml")


def test_turns_wait_for_answers_unless_the_spec_states_otherwise() -> None:
    closed, loops = generate_loops(spec(chat()))
    assert loops is not None
    assert loops.later_turns
    assert waits(closed).any()
    opened, loops = generate_loops(spec(chat() | {"closed_loop": False}))
    assert loops is None
    assert not waits(opened).any()
    assert opened.round_index is not None
    assert opened.round_index.max() > 0


def test_open_or_closed_sessions_begin_and_say_the_same() -> None:
    """Where an open loop plans no time for answers, it asks for the same turns, at other times."""
    closed, _ = generate_loops(spec(chat(), PLAIN))
    opened = generate(spec(chat() | {"closed_loop": False}, PLAIN))
    in_order = np.argsort(closed.arrival_ns, kind="stable")
    for column in ("arrival_ns", "prompt_tokens", "output_tokens", "session", "round_index"):
        assert np.array_equal(np.sort(getattr(closed, column)), np.sort(getattr(opened, column)))
    assert np.array_equal(closed.prompt_tokens[in_order].sum(), opened.prompt_tokens.sum())


def test_as_many_turns_as_requested_however_fast_the_answers(tmp_path: Path) -> None:
    path = written(tmp_path, chat(), PLAIN)
    fast, slow = (blis.run(**MODEL, workload_spec=path, gpu=gpu).record for gpu in ("h200", "l40s"))
    assert len(fast.table) == len(slow.table) == 120
    assert sorted(fast.table.ids()) == sorted(slow.table.ids())
    assert not np.array_equal(fast.table.arrival_ns, slow.table.arrival_ns)


def test_in_blis_a_session_that_begins_in_time_has_all_its_turns() -> None:
    plan = {"rounds_distribution": None, "max_rounds": 5}
    exact, _ = generate_loops(spec(chat(**plan)))
    whole, _ = generate_loops(spec(chat(**plan)), as_blis=True)
    assert len(exact) == 400
    assert len(whole) > 400
    assert whole.session is not None
    assert set(np.bincount(whole.session).tolist()) == {5}


def test_in_blis_a_prompt_repeats_all_but_the_last_token_of_each_answer() -> None:
    plan = {"rounds_distribution": None, "max_rounds": 4}
    ours, _ = generate_loops(spec(chat(**plan)), as_blis=False)
    theirs, _ = generate_loops(spec(chat(**plan)), as_blis=True)
    for table, forgotten in ((ours, 0), (theirs, 1)):
        assert table.session is not None
        assert table.round_index is not None
        rows = np.flatnonzero(table.session == 0)
        rows = rows[np.argsort(table.round_index[rows])]
        for before, after in pairwise(rows):
            said = int(table.prompt_tokens[before] + table.output_tokens[before]) - forgotten
            assert table.prompt_tokens[after] > said
            runs = table.contents[table.content[before]]
            assert (
                sum(tokens for _, tokens in runs)
                == table.prompt_tokens[before] + table.output_tokens[before] - 1
            )


def test_a_conversation_finds_its_history_in_the_cache(tmp_path: Path) -> None:
    record = blis.run(**MODEL, workload_spec=written(tmp_path, chat())).record
    table = record.table
    assert table.session is not None
    assert table.round_index is not None
    for row in np.flatnonzero(table.round_index > 0).tolist():
        (before,) = np.flatnonzero(
            (table.session == table.session[row]) & (table.round_index == table.round_index[row] - 1)
        )
        known = table.prompt_tokens[before] + table.output_tokens[before] - 1
        assert record.cached_tokens[row] == known // 16 * 16


def test_sessions_stand_beside_clients_with_a_concurrency_and_others(tmp_path: Path) -> None:
    result = blis.run(**MODEL, workload_spec=written(tmp_path, chat(), PLAIN, USERS))
    frame = result.requests
    assert len(frame) == 120
    assert set(frame.client) == {"chat", "plain", "users"}
    users = frame[frame.client == "users"].sort_values("arrival_s")
    assert (users.arrival_s == 0).sum() == 3
    assert (frame.session_id != "").sum() == (frame.client == "chat").sum()
    again = blis.run(**MODEL, workload_spec=written(tmp_path, chat(), PLAIN, USERS))
    assert again.summary == result.summary


def test_sessions_of_block_diffusion_wait_too(tmp_path: Path) -> None:
    path = written(
        tmp_path, chat(), kind="diffusion", block_size=32, steps={"mean": 6, "cv": 0.4}, num_requests=60
    )
    served: dict[str, Any] = {"model": "llada2.0-mini", "latency_model": "roofline"} | LIMITS
    record = blis.run(**served, workload_spec=path).record
    table = record.table
    assert table.session is not None
    assert table.think_ns is not None
    assert record.blocks is not None
    later = 0
    for number in set(table.session.tolist()):
        rows = np.flatnonzero(table.session == number)
        sent_ns = record.finish_ns[rows[:-1]] + table.think_ns[rows[1:]]
        assert np.array_equal(table.arrival_ns[rows[1:]], sent_ns)
        later += len(rows) - 1
    assert later > 10


def test_what_a_run_wrote_plays_the_same_at_its_times_and_as_a_closed_loop(tmp_path: Path) -> None:
    saved = tmp_path / "out"
    once = blis.run(**MODEL, workload_spec=written(tmp_path, chat(), PLAIN))
    once.save(saved, plots=False)
    fixed = blis.replay(saved / "trace.csv", **MODEL)
    closed = blis.replay(saved / "trace.csv", session_mode="closed-loop", **MODEL)
    for other in (fixed, closed):
        for column in ("finish_ns", "cached_tokens", "outcome"):
            assert np.array_equal(getattr(other.record, column), getattr(once.record, column))
    turns = closed.requests.session_id.map(lambda name: name.removeprefix("session_"))
    assert (turns != "").any()
    assert closed.requests.round_index.tolist() == once.requests.round_index.tolist()


def test_a_spec_converts_to_a_trace_that_plays_the_same_closed_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, chat(), PLAIN, seed=3)
    assert main(["convert", path, str(tmp_path / "talks.yaml")]) == 0
    assert "--session-mode closed-loop" in capsys.readouterr().err
    one = blis.run(**MODEL, workload_spec=path).record
    other = blis.replay(tmp_path / "talks.csv", session_mode="closed-loop", **MODEL).record
    for column in ("finish_ns", "cached_tokens", "outcome"):
        assert np.array_equal(getattr(one, column), getattr(other, column))
    assert main(["convert", path, str(tmp_path / "talks.jsonl")]) == 2
    assert "or convert it to TraceV2" in capsys.readouterr().err


def test_a_slower_server_gets_its_requests_later(tmp_path: Path) -> None:
    """The same trace: at its times nothing changes, in a closed loop later turns do."""
    saved = tmp_path / "out"
    blis.run(**MODEL, workload_spec=written(tmp_path, chat())).save(saved, plots=False)
    fixed, closed = (
        blis.replay(saved / "trace.csv", session_mode=mode, gpu="l40s", **MODEL).record
        for mode in ("fixed", "closed-loop")
    )
    assert closed.table.arrival_ns.max() > fixed.table.arrival_ns.max()


def test_without_a_server_sessions_that_wait_are_refused() -> None:
    with pytest.raises(InputError, match=r"clients\[0\]\.closed_loop: .*depends on its answers"):
        generate(spec(chat()))
    assert len(generate(spec(chat() | {"closed_loop": False}))) == 400


def test_a_sessions_turn_never_comes_before_it_can(tmp_path: Path) -> None:
    """The plan that says which turns there are has them no later than they are sent."""
    table, _ = generate_loops(spec(chat()), seed=MODEL["seed"])
    record = blis.run(**MODEL, workload_spec=written(tmp_path, chat(), num_requests=400)).record
    planned_ns = dict(zip(table.ids(), table.arrival_ns.tolist(), strict=True))
    sent_ns = dict(zip(record.table.ids(), record.table.arrival_ns.tolist(), strict=True))
    assert planned_ns.keys() == sent_ns.keys()
    assert all(planned_ns[name] <= sent_ns[name] for name in sent_ns)
