"""Sessions: turns, and what each of them repeats."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from blis_py.core.kv import KeySpace
from blis_py.errors import InputError
from blis_py.workload import RequestTable, generate
from blis_py.workload.generate import generate_loops
from blis_py.workload.spec import WorkloadSpec

MULTI_TURN: dict[str, object] = {
    "max_rounds": 12,
    "rounds_distribution": {"type": "exponential", "params": {"mean": 5}},
    "think_time_ms_distribution": {"type": "lognormal", "params": {"mu": 9.0, "sigma": 1.0}},
    "planned_itl_us": 20_000,
    "context_growth": "accumulate",
}
CLIENT = {
    "id": "chat",
    "rate_fraction": 1.0,
    "arrival": {"process": "poisson"},
    "input_distribution": {"type": "exponential", "params": {"mean": 100}},
    "output_distribution": {"type": "exponential", "params": {"mean": 200}},
    "closed_loop": False,
}


def client(**multi_turn: object) -> dict[str, object]:
    return CLIENT | {"reasoning": {"multi_turn": MULTI_TURN | multi_turn}}


def made(*clients: dict[str, object], **top: object) -> RequestTable:
    values = {"aggregate_rate": 1.0, "num_requests": 3000, "clients": list(clients)} | top
    return generate(WorkloadSpec.model_validate(values))


def sessions(table: RequestTable) -> dict[str | int, list[int]]:
    """Rows by the session their content names, in order of arrival."""
    found: dict[str | int, list[int]] = {}
    for row, at in enumerate(table.content.tolist()):
        found.setdefault(table.contents[at][-1][0], []).append(row)
    return found


def test_a_prompt_repeats_all_that_was_said_before_in_its_session() -> None:
    table = made(client() | {"prefixes": [{"name": "system", "tokens": 70}]})
    turns = sessions(table)
    assert sum(map(len, turns.values())) == 3000
    for rows in turns.values():
        for before, after in pairwise(rows):
            said = table.prompt_tokens[before] + table.output_tokens[before]
            assert table.prompt_tokens[after] > said
    for row, at in enumerate(table.content.tolist()):
        system, talk = table.contents[at]
        assert system == ("system/0", 70)
        assert talk[1] == table.prompt_tokens[row] + table.output_tokens[row] - 70 - 1


def test_the_block_keys_of_an_answer_are_those_of_the_next_prompt() -> None:
    table, space = made(client()), KeySpace(16)
    rows = next(rows for rows in sessions(table).values() if len(rows) > 3)
    keys = [space.keys(table.contents[table.content[row]]) for row in rows]
    for row, before, after in zip(rows, keys, keys[1:], strict=False):
        assert len(before) == (table.prompt_tokens[row] + table.output_tokens[row] - 1) // 16
        assert after[: len(before)] == before


def test_sessions_share_nothing_but_their_prefix() -> None:
    table, space = made(client() | {"prefixes": [{"name": "system", "tokens": 64}]}), KeySpace(16)
    one, other = (rows[0] for rows in list(sessions(table).values())[:2])
    keys = [space.keys(table.contents[table.content[row]]) for row in (one, other)]
    assert set(keys[0]) & set(keys[1]) == set(keys[0][:4])


def test_a_turn_comes_a_pause_after_the_planned_end_of_the_answer() -> None:
    table = made(client(think_time_us=3_000_000, think_time_ms_distribution=None))
    for rows in sessions(table).values():
        gaps = np.diff(table.arrival_ns[rows])
        assert np.array_equal(gaps, 3 * 10**9 + table.output_tokens[rows[:-1]] * 20_000_000)


@pytest.mark.slow
def test_think_times_and_rounds_follow_their_distributions() -> None:
    table = made(client(planned_itl_us=0), num_requests=0, horizon=20_000_000_000)
    turns = sessions(table)
    gaps_ms = np.concatenate([np.diff(table.arrival_ns[rows]) for rows in turns.values()]) / 1e6
    assert np.median(gaps_ms) == pytest.approx(np.exp(9.0), rel=0.05)
    full = [len(rows) for rows in list(turns.values())[: len(turns) // 2]]
    assert max(full) == 12
    rounded_and_capped = sum(
        min(max(round(x), 1), 12) for x in np.random.default_rng(1).exponential(5, 50_000)
    )
    assert np.mean(full) == pytest.approx(rounded_and_capped / 50_000, rel=0.03)


def test_without_growth_the_turns_are_only_requests_at_their_times() -> None:
    table = made(client(context_growth=""))
    growing = made(client())
    assert np.all(table.content == -1)
    assert np.array_equal(table.arrival_ns, growing.arrival_ns)
    assert table.prompt_tokens.mean() == pytest.approx(100, rel=0.1)


def test_arrivals_are_session_starts_so_the_rate_counts_sessions() -> None:
    table = made(client(rounds_distribution=None), num_requests=0, horizon=10_000_000_000)
    starts = [table.arrival_ns[rows[0]] for rows in sessions(table).values()]
    assert len(starts) == pytest.approx(10_000, rel=0.04)
    assert len(table) == pytest.approx(120_000, rel=0.04)


def test_a_single_session_ends_the_workload_with_its_last_turn() -> None:
    table = made(client(single_session=True, rounds_distribution=None))
    assert len(table) == 12
    assert len(sessions(table)) == 1


def test_asking_for_more_requests_continues_the_sessions() -> None:
    plain = CLIENT | {"id": "plain", "rate_fraction": 3.0}
    few, many = (made(client(), plain, num_requests=count) for count in (300, 2000))
    for column in ("arrival_ns", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(many, column)[:300], getattr(few, column))
    runs = [[t.contents[at] if at >= 0 else () for at in t.content.tolist()[:300]] for t in (few, many)]
    assert runs[0] == runs[1]


def test_a_conversation_leaves_the_requests_of_other_clients_as_they_were() -> None:
    plain = CLIENT | {"id": "plain"}
    alone = made(plain, num_requests=200)
    joined = made(client(), plain, aggregate_rate=2.0)
    rows = np.flatnonzero(joined.client.codes == 1)[:200]
    for column in ("arrival_ns", "prompt_tokens", "output_tokens"):
        assert np.array_equal(getattr(joined, column)[rows], getattr(alone, column)[: len(rows)])


def test_clients_of_several_turns_wait_300_s_unless_they_say_otherwise() -> None:
    patience = {}
    for timeout in (None, 0, 5_000_000):
        table = made(client() | {"timeout": timeout})
        patience[timeout] = np.unique(
            np.where(table.deadline_ns < 0, -1, table.deadline_ns - table.arrival_ns)
        )
    assert {key: value.tolist() for key, value in patience.items()} == {
        None: [300 * 10**9],
        0: [-1],
        5_000_000: [5 * 10**9],
    }


def test_a_pause_of_months_is_refused() -> None:
    slow = {"type": "constant", "params": {"value": 2_147_483_647}}
    with pytest.raises(InputError, match="more than a month"):
        made(client(planned_itl_us=1_000_000) | {"output_distribution": slow})


def test_think_times_keep_to_their_least_and_their_most() -> None:
    """A seventh of this law would lie below the least, and as much above the most."""
    params = {"mean": 500.0, "std_dev": 200.0, "min": 300.0, "max": 700.0}
    law = {"type": "gaussian", "params": params}
    talks = {"max_rounds": 12, "think_time_ms_distribution": law}
    client = CLIENT | {"reasoning": {"multi_turn": talks}, "closed_loop": True}
    values = {"aggregate_rate": 1.0, "num_requests": 3000, "clients": [client]}
    table, _ = generate_loops(WorkloadSpec.model_validate(values))
    assert table.think_ns is not None
    assert table.round_index is not None
    found = table.think_ns[table.round_index > 0]
    assert (found.min(), found.max()) == (300_000_000, 700_000_000)
    assert (found == 300_000_000).mean() == pytest.approx(0.159, abs=0.04)
