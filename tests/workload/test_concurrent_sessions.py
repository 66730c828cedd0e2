"""Closed loops of conversations: each permit runs one session turn by turn, then the next."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import blis_py as blis
from blis_py.config.models import RunConfig
from blis_py.config.workload import WorkloadSection
from blis_py.errors import InputError
from blis_py.planning.longer import longer
from blis_py.requests.sessions import waits
from blis_py.setup.from_config import demand
from blis_py.workload.generate import generate, generate_loops
from blis_py.workload.spec import WorkloadSpec

MODEL: dict[str, Any] = {"model": "llama-3.1-8b", "seed": 3}
USERS: dict[str, Any] = {
    "id": "users",
    "concurrency": 3,
    "input_distribution": {"type": "exponential", "params": {"mean": 80}},
    "output_distribution": {"type": "exponential", "params": {"mean": 40}},
    "reasoning": {"multi_turn": {"max_rounds": 4, "think_time_us": 200_000, "context_growth": "accumulate"}},
}
PACED = USERS | {"rate_fraction": 1, "arrival": {"process": "constant"}}


def written(folder: Path, *clients: dict[str, Any], **top: Any) -> str:
    values = {"version": "2", "num_requests": 90, "clients": list(clients)} | top
    (folder / "spec.yaml").write_text(yaml.safe_dump(values))
    return str(folder / "spec.yaml")


def with_turns(client: dict[str, Any], **plan: Any) -> dict[str, Any]:
    return client | {"reasoning": {"multi_turn": client["reasoning"]["multi_turn"] | plan}}


def intervals(frame: pd.DataFrame) -> list[tuple[float, float]]:
    """Begin and end of each session, in s."""
    ends = frame.arrival_s + frame.e2e_ms / 1000
    return [
        (float(rows.arrival_s.min()), float(ends[rows.index].max()))
        for _, rows in frame.groupby("session_id")
    ]


def most_at_once(spans: list[tuple[float, float]]) -> int:
    return max(sum(begin <= start < end - 1e-9 for begin, end in spans) for start, _ in spans)


def test_each_permit_runs_one_conversation_after_another(tmp_path: Path) -> None:
    result = blis.run(**MODEL, workload_spec=written(tmp_path, USERS))
    frame = result.requests
    assert len(frame) == 90
    assert (frame.arrival_s == 0).sum() == 3
    for _, turns in frame.groupby("session_id"):
        ordered = turns.sort_values("round_index")
        assert ordered.round_index.tolist() == list(range(len(ordered)))
        ends = (ordered.arrival_s + ordered.e2e_ms / 1000).to_numpy()
        assert ordered.arrival_s.to_numpy()[1:] == pytest.approx(ends[:-1] + 0.2, abs=1e-6)
    assert most_at_once(intervals(frame)) == 3
    whole = frame.groupby("session_id").size()
    assert (whole < 4).sum() <= 3  # those that the number of requests cut off
    assert result.summary["sessions"]["turns_not_reached"] == (4 - whole).sum()
    assert result.summary["load"]["verdict"] == "closed loop"
    assert (frame.client_wait_ms == 0).all()


def test_the_next_conversation_begins_when_a_permit_is_free(tmp_path: Path) -> None:
    """After the last turn, and the client's own pause."""
    client = with_turns(USERS, think_time_us=100_000) | {"concurrency": 1, "think_time_us": 700_000}
    spans = sorted(intervals(blis.run(**MODEL, workload_spec=written(tmp_path, client)).requests))
    for (_, ended), (begun, _) in pairwise(spans):
        assert begun == pytest.approx(ended + 0.7, abs=1e-6)


def test_turns_have_the_pause_of_the_loop_where_they_have_none_of_their_own(tmp_path: Path) -> None:
    client = with_turns(USERS, think_time_us=0) | {"think_time_us": 300_000}
    table = blis.run(**MODEL, workload_spec=written(tmp_path, client)).record.table
    assert table.think_ns is not None
    assert set(table.think_ns[waits(table)].tolist()) == {300_000_000}


def test_a_conversation_that_breaks_off_frees_its_permit(tmp_path: Path) -> None:
    """Every first turn fails: all that are sent are first turns, as many as requested."""
    client = USERS | {"input_distribution": {"type": "constant", "params": {"value": 5000}}}
    result = blis.run(**MODEL, workload_spec=written(tmp_path, client), max_model_len=4096)
    frame = result.requests
    assert len(frame) == 90
    assert frame.round_index.tolist() == [0] * 90
    assert frame.session_id.nunique() == 90


def test_with_a_rate_conversations_that_are_due_wait_for_a_permit(tmp_path: Path) -> None:
    frame = blis.run(**MODEL, workload_spec=written(tmp_path, PACED, aggregate_rate=50.0)).requests
    assert len(frame) == 90
    assert most_at_once(intervals(frame)) == 3
    first = frame[frame.round_index == 0]
    assert (first.client_wait_ms > 0).any()
    free = with_turns(PACED) | {"concurrency": 50}
    early = blis.run(**MODEL, workload_spec=written(tmp_path, free, aggregate_rate=50.0)).requests
    assert early.arrival_s.max() < frame.arrival_s.max()
    assert sorted(early.prompt_tokens) == sorted(frame.prompt_tokens)


def test_they_stand_beside_other_clients(tmp_path: Path) -> None:
    plain = {key: value for key, value in USERS.items() if key != "reasoning"} | {"id": "plain"}
    chat = {key: value for key, value in PACED.items() if key != "concurrency"} | {"id": "chat"}
    path = written(tmp_path, chat, USERS, plain, aggregate_rate=2.0, num_requests=300)
    result = blis.run(**MODEL, workload_spec=path)
    frame = result.requests
    assert len(frame) == 300
    assert result.summary["load"]["closed_loop_requests"] == frame.client.isin(["users", "plain"]).sum()
    assert most_at_once(intervals(frame[frame.client == "users"])) == 3
    assert (frame[frame.client == "plain"].session_id == "").all()
    assert (frame[frame.client == "chat"].round_index > 0).any()


def test_conversations_of_a_faster_server_are_the_same(tmp_path: Path) -> None:
    path = written(tmp_path, USERS)
    fast, slow = (blis.run(**MODEL, workload_spec=path, gpu=gpu).requests for gpu in ("h200", "l40s"))
    columns = ["session_id", "round_index", "prompt_tokens", "output_tokens"]
    both = fast[columns].merge(slow[columns], on=columns[:2])
    assert len(both) > 60
    assert (both.prompt_tokens_x == both.prompt_tokens_y).all()


def test_more_requests_continue_the_same_conversations(tmp_path: Path) -> None:
    load = WorkloadSection(spec=written(tmp_path, USERS))
    config = RunConfig(**(MODEL | {"workload": load}))
    once, twice = demand(config), longer(config, 2.0, demand)
    assert (once.most, twice.most) == (90, 180)
    assert np.array_equal(twice.table.prompt_tokens[:90], once.table.prompt_tokens[:90])


def test_as_blis_the_loop_has_no_conversations(tmp_path: Path) -> None:
    """BLIS's users of a concurrency send again and again, whatever `multi_turn` says."""
    path = written(tmp_path, USERS)
    result = blis.run(**MODEL, workload_spec=path, engine="blis", latency_model="roofline")
    assert (result.requests.prompt_tokens < 1000).all()
    assert any("multi_turn of clients with a concurrency is ignored" in note for note in result.notes)
    spec = WorkloadSpec.model_validate({"num_requests": 9, "clients": [USERS]})
    table, loops = generate_loops(spec, as_blis=True)
    assert loops is not None
    assert not loops.later_turns
    assert table.session is None


def test_one_session_alone_contradicts_a_concurrency() -> None:
    spec = {"num_requests": 9, "clients": [with_turns(USERS, single_session=True)]}
    with pytest.raises(InputError, match=r"clients\[0\]\.reasoning\.multi_turn\.single_session: .*one after"):
        generate(WorkloadSpec.model_validate(spec))
