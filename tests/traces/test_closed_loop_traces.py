"""The sessions of a recorded trace: at its times, or turn after answer with the conversation so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_py.cli.flags.configure import overrides
from blis_py.config.loader import load_config
from blis_py.config.models import NAMES
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.requests.think_time import ThinkTime, think_time
from blis_py.traces import read_trace
from blis_py.traces.reading import Reading

HEADER = "trace_version: 3\ntime_unit: microseconds\nmode: generated\nwarm_up_requests: 0\n"
ACCUMULATE = "session_context_growth: accumulate\n"
NAMES_OF_COLUMNS = (
    "request_id,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens,"
    "server_input_tokens,arrival_time_us,last_chunk_time_us,think_time_us"
)
ROWS = [
    "0,a,0,sys,32,100,20,0,1000,1500,0",
    "1,,0,,0,50,5,0,1200,0,0",
    "2,a,1,sys,32,30,10,0,3000,3400,700",
    "3,b,0,,0,7,3,0,2500,2600,0",
    "4,a,2,sys,32,40,8,0,9000,9100,800",
]
"""Session `a` has three turns, `b` one, and request 1 stands alone."""


def trace(folder: Path, rows: list[str], header: str = HEADER + ACCUMULATE) -> Path:
    (folder / "t.yaml").write_text(header)
    (folder / "t.csv").write_text("\n".join([NAMES_OF_COLUMNS, *rows]) + "\n")
    return folder / "t.csv"


def read(path: Path, **settings: Any) -> tuple[RequestTable, Reading]:
    reading = Reading(**({"session_mode": "closed-loop"} | settings))
    return read_trace(path, reading=reading), reading


def of_session(table: RequestTable, name: str) -> list[int]:
    return [row for row, own in enumerate(table.session_ids()) if own == name]


def test_a_prompt_has_all_that_was_said_before_behind_the_prefix_of_the_session(tmp_path: Path) -> None:
    table, _ = read(trace(tmp_path, ROWS))
    rows = of_session(table, "a")
    assert table.prompt_tokens[rows].tolist() == [132, 182, 232]
    runs = [table.contents[table.content[row]] for row in rows]
    assert [part[0] for part in runs] == [("sys", 32)] * 3
    assert [part[1][1] for part in runs] == [119, 159, 207]
    assert len({part[1][0] for part in runs}) == 1
    (alone,) = of_session(table, "b")
    assert table.contents[table.content[alone]][-1][0] != runs[0][1][0]


def test_as_blis_plays_it_the_last_token_of_an_answer_is_forgotten(tmp_path: Path) -> None:
    table, _ = read(trace(tmp_path, ROWS), as_blis=True)
    assert table.prompt_tokens[of_session(table, "a")].tolist() == [132, 181, 230]


def test_an_answer_is_remembered_as_far_as_its_limit_let_it_be(tmp_path: Path) -> None:
    path = trace(tmp_path, ROWS)
    path.write_text(
        "\n".join(f"{row},{'max_tokens' if not n else 15}" for n, row in enumerate([NAMES_OF_COLUMNS, *ROWS]))
    )
    table, _ = read(path)
    assert table.prompt_tokens[of_session(table, "a")].tolist() == [132, 177, 227]


def test_pauses_are_those_given_or_recorded_or_those_between_answer_and_turn(tmp_path: Path) -> None:
    def pauses(rows: list[str], **settings: Any) -> tuple[list[int], str]:
        table, reading = read(trace(tmp_path, rows), **settings)
        assert table.think_ns is not None
        return (table.think_ns[of_session(table, "a")] // 1000).tolist(), " ".join(reading.notes)

    without = [row.rsplit(",", 1)[0] + ",0" for row in ROWS]
    unmeasured = [",".join([*row.split(",")[:-2], "0", "0"]) for row in ROWS]
    assert pauses(ROWS, think=think_time("constant:value=5ms"))[0] == [0, 5000, 5000]
    assert pauses(ROWS) == ([0, 700, 800], "")
    assert pauses(without)[0] == [0, 1500, 5600]
    report = pauses(unmeasured)
    assert report[0] == [0, 2000, 6000]
    assert "between their arrivals" in report[1]
    assert pauses(without, as_blis=True)[0] == [0, 2000, 6000]


def test_later_turns_are_placed_as_early_as_they_can_come(tmp_path: Path) -> None:
    table, reading = read(trace(tmp_path, ROWS))
    assert (table.arrival_ns[of_session(table, "a")] // 1000).tolist() == [1000, 1700, 2500]
    assert bool((np.diff(table.arrival_ns) >= 0).all())
    assert not reading.notes


def test_at_fixed_times_every_row_is_played_as_it_stands(tmp_path: Path) -> None:
    table, reading = read(trace(tmp_path, ROWS), session_mode="fixed")
    assert table.think_ns is None
    rows = of_session(table, "a")
    assert table.prompt_tokens[rows].tolist() == [132, 62, 72]
    assert (table.arrival_ns[rows] // 1000).tolist() == [1000, 3000, 9000]
    assert "without the conversation before it" in reading.notes[0]


def test_without_growth_a_turn_states_what_its_row_says(tmp_path: Path) -> None:
    table, _ = read(trace(tmp_path, ROWS, HEADER))
    assert table.prompt_tokens[of_session(table, "a")].tolist() == [132, 62, 72]


def test_what_the_server_counted_of_a_later_turn_is_the_whole_conversation_already(tmp_path: Path) -> None:
    rows = ["0,a,0,,0,100,20,110,0,0,0", "1,a,1,,0,30,10,160,5,0,9"]
    table, _ = read(trace(tmp_path, rows))
    assert table.prompt_tokens.tolist() == [110, 160]


@pytest.mark.parametrize(
    ("rows", "header", "complaint"),
    [
        (ROWS[1:2], HEADER, "no request says which session"),
        ([ROWS[0], ROWS[4]], HEADER, "turn 1 of session a is missing"),
        ([ROWS[0], ROWS[2], ROWS[2].replace("2,", "9,", 1)], HEADER, "turn 2 of session a is missing, or"),
        (["0,a,0,,0,1,1,0,0,0,0", f"1,a,1,,0,1,1,0,0,0,{10**15}"], HEADER, "more than a month"),
    ],
)
def test_sessions_that_cannot_be_played_are_one_clear_error(
    tmp_path: Path, rows: list[str], header: str, complaint: str
) -> None:
    with pytest.raises(InputError, match=complaint):
        read(trace(tmp_path, rows, header))


@pytest.mark.parametrize(
    ("text", "mean_s", "low_s", "high_s"),
    [
        ("constant:value=800ms", 0.8, 0.8, 0.8),
        ("constant:2s", 2.0, 2.0, 2.0),
        ("exponential:mean=500ms,max=10s", 0.5, 0.0, 10.0),
        ("lognormal:mu=0.5,sigma=0.4", np.exp(0.5 + 0.08), 0.0, np.inf),
        ("lognormal:0.5,0.4,100ms,20s", np.exp(0.5 + 0.08), 0.1, 20.0),
    ],
)
def test_pauses_follow_their_law(text: str, mean_s: float, low_s: float, high_s: float) -> None:
    drawn_s = think_time(text).draw(np.random.default_rng(0), 40_000) / 1e9
    assert drawn_s.mean() == pytest.approx(mean_s, rel=0.02)
    assert low_s <= drawn_s.min()
    assert drawn_s.max() <= high_s
    shorter = think_time(text).draw(np.random.default_rng(0), 100)
    assert np.array_equal(shorter / 1e9, drawn_s[:100])


@pytest.mark.parametrize(
    "text",
    [
        *("", "uniform:1s", "constant", "constant:value=5", "constant:value=-1s"),
        *("constant:value=1s,value=2s", "constant:value=99999h", "exponential:mean=1s,min=3s,max=2s"),
        *("lognormal:mu=1", "lognormal:mu=x,sigma=1"),
    ],
)
def test_a_law_that_is_none_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(InputError, match="write constant:value=800ms"):
        think_time(text)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"think_time_dist": "constant:value=1s"}, "add --session-mode closed-loop"),
        ({"think_time_ms": 5.0}, "add --session-mode closed-loop"),
        ({"session_mode": "closed-loop", "concurrency": 3}, "wait for answers already"),
        (
            {"session_mode": "closed-loop", "think_time_ms": 5.0, "think_time_dist": "constant:value=1s"},
            "says the same as think_time_ms",
        ),
        ({"session_mode": "open"}, "session_mode"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], complaint: str) -> None:
    given = {"trace": "t.csv", "model": "llama-3.1-8b"} | settings
    with pytest.raises(InputError, match=complaint):
        load_config(overrides=[(name, NAMES[name], value) for name, value in given.items()])


def test_the_default_of_a_flag_of_blis_changes_nothing() -> None:
    """Its `--think-time-ms 0` leaves the pauses of the trace."""
    assert overrides({"--think-time-ms": 0.0}) == [("--think-time-ms", "workload.think_time_ms", None)]
    assert overrides({"--think-time-ms": 5.0}) == [("--think-time-ms", "workload.think_time_ms", 5.0)]


def test_a_session_mode_without_a_trace_is_refused() -> None:
    overrides = [("session_mode", NAMES["session_mode"], "closed-loop")]
    with pytest.raises(InputError, match="about the sessions of a trace"):
        load_config(overrides=overrides)


def test_a_law_holds_what_it_was_given() -> None:
    assert think_time("lognormal:1.5,0.5,1s") == ThinkTime(
        "lognormal", {"mu": 1.5, "sigma": 0.5, "min": 10**9}
    )
