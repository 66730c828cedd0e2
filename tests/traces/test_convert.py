"""What is written in a format of others is read back as it was, but for what is said to be lost."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.errors import InputError
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces import read_trace
from blis_py.traces.compose import merged
from blis_py.traces.convert import FEATURES, WRITERS, losses, writer_for

CONTENTS = ((("a", 512), ("b", 512)), (("a", 512), ("c", 512)), (("a", 600),))


def table_of(rows: list[tuple[int, int, int, int]], *, named: bool = False) -> RequestTable:
    """Requests of (arrival in µs, prompt, output, content)."""
    arrival, prompt, output, content = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    return RequestTable.build(
        np.sort(arrival) * 1000,
        prompt,
        output,
        content=content,
        contents=CONTENTS,
        slo_class=Labels.of(["batch" if row % 2 else "" for row in range(len(rows))]),
        request_id=[f"id {row}" for row in range(len(rows))] if named else None,
    )


def shared_tokens(table: RequestTable, one: int, other: int) -> int:
    """With how many tokens two prompts begin alike."""
    both = [table.contents[i] if i >= 0 else () for i in table.content[[one, other]].tolist()]
    tokens = 0
    for (left, left_tokens), (right, right_tokens) in zip(*both, strict=False):
        if left != right:
            break
        tokens += min(left_tokens, right_tokens)
        if left_tokens != right_tokens:
            break
    return min(tokens, *table.prompt_tokens[[one, other]].tolist())


REQUESTS = st.lists(
    st.tuples(st.integers(0, 10**9), st.integers(1, 3000), st.integers(1, 500), st.integers(-1, 2)),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(rows=REQUESTS, named=st.booleans())
@pytest.mark.parametrize(
    ("format", "name"),
    [("azure", "x.csv"), ("mooncake", "x.jsonl"), ("tracev2", "x.yaml"), ("parquet", "x.parquet")],
)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    format: str,
    name: str,
    rows: list[tuple[int, int, int, int]],
    named: bool,
) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow.parquet")
    table = table_of(rows, named=named)
    path = tmp_path_factory.mktemp("written") / name
    writer = WRITERS[format]
    assert writer_for(path, None) is writer
    writer.write(table, path)
    again = read_trace(path)
    assert again.arrival_ns.tolist() == table.arrival_ns.tolist()
    assert again.prompt_tokens.tolist() == table.prompt_tokens.tolist()
    assert again.output_tokens.tolist() == table.output_tokens.tolist()
    if "slo_class" in writer.holds:
        assert again.slo_class.to_list() == table.slo_class.to_list()
    if format != "tracev2" or not named:
        assert list(again.ids()) == list(table.ids())
    lost = losses(table, writer)
    assert lost == losses(table, writer)
    if format == "mooncake" and not any("beyond whole blocks" in what for what in lost):
        for row in range(len(table)):
            for other in range(row):
                want = shared_tokens(table, row, other)
                assert shared_tokens(again, row, other) // 512 == want // 512


@pytest.mark.parametrize(
    ("format", "module", "name"),
    [
        ("azure", "azure_write", "x.csv"),
        ("tracev2", "tracev2_write", "x.yaml"),
        ("parquet", "parquet", "x.parquet"),
    ],
)
def test_a_table_is_written_piece_by_piece_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, module: str, name: str
) -> None:
    if format == "parquet":
        pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(f"blis_py.traces.{module}.ROWS_AT_ONCE", 2)
    table = table_of([(at, 600 + at, 1 + at, -1) for at in range(5)])
    WRITERS[format].write(table, tmp_path / name)
    assert read_trace(tmp_path / name).output_tokens.tolist() == [1, 2, 3, 4, 5]


def test_every_loss_is_named_with_how_many_requests_it_concerns() -> None:
    table = table_of([(0, 600, 5, 2), (1, 700, 5, -1), (2, 900, 5, 2)])
    assert losses(table, WRITERS["tracev2"]) == []
    assert losses(table, WRITERS["parquet"]) == []
    assert losses(table, WRITERS["azure"]) == ["shared beginnings of prompts (of 2 of 3 requests)"]
    assert losses(table, WRITERS["mooncake"]) == [
        "SLO classes (of 1 of 3 requests)",
        "shared tokens beyond whole blocks of 512 (of 1 of 3 requests)",
    ]


def test_every_column_of_a_table_has_a_place_or_is_counted_as_lost() -> None:
    always = {"arrival_ns", "prompt_tokens", "output_tokens", "contents", "prefix_tokens", "due_ns"}
    always.add("session_names")  # with the sessions
    columns = {name.removesuffix("_ns") for name in RequestTable.__slots__ if name not in always}
    assert columns - set(FEATURES) == {"ends_by_eos"}  # called eos there


def test_constrained_answers_are_kept_or_counted_and_merge_with_those_that_are_not() -> None:
    table = table_of([(0, 600, 1, 0), (5, 600, 2, 1)])
    constrained = replace(table, constrained=np.array([True, False]))
    assert losses(constrained, WRITERS["tracev2"]) == []
    for name in ("parquet", "azure", "mooncake"):
        assert "structured outputs (of 1 of 2 requests)" in losses(constrained, WRITERS[name])
    both = merged([constrained, table], ["one", "other"])
    assert both.constrained is not None
    assert sorted(both.constrained.tolist()) == [False, False, False, True]


def test_an_unknown_ending_requires_the_format(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"which format\?"):
        writer_for(tmp_path / "x.txt", None)
    with pytest.raises(InputError, match="--to"):
        writer_for(tmp_path / "x.csv", "csv")


def test_merged_recordings_keep_what_each_shares_and_share_nothing_with_each_other() -> None:
    one, other = table_of([(0, 600, 1, 0), (5, 600, 2, 1)]), table_of([(3, 600, 3, 0), (4, 600, 4, 0)])
    both = merged([one, other], ["one", "other"])
    assert both.output_tokens.tolist() == [1, 3, 4, 2]
    assert list(both.ids()) == ["one/request_0", "other/request_0", "other/request_1", "one/request_1"]
    assert shared_tokens(both, 0, 3) == 512
    assert shared_tokens(both, 1, 2) == 600
    assert shared_tokens(both, 0, 1) == 0


def test_every_feature_is_counted_by_the_requests_that_have_it() -> None:
    """Of four; a fifth of contents ends inside a block of 512, and whole prompts lose nothing to blocks."""
    four = np.zeros(4, dtype=np.int64)
    flags = np.array([True, False, True, True])
    table = replace(
        RequestTable.build(
            four,
            four + 600,
            four + 5,
            max_tokens=np.array([5, 6, 0, 5]),
            deadline_ns=np.array([-1, 0, 1, 7]),
            slo_target_ns=np.array([0, 0, 0, 9]),
            slo_class=Labels.of(["", "a", "b", "a"]),
            tenant=Labels.of(["t", "", "", ""]),
            client=Labels.of(["c", "c", "", ""]),
            model=Labels.of(["", "", "", ""]),
            prefix_group=Labels.of(["", "", "", "g"]),
            streaming=~flags,
            content=np.array([-1, 0, 1, 2]),
            contents=((("a", 512),), (("b", 600),), (("a", 512), ("c", 10))),
            session=np.array([-1, 0, 0, 1]),
            round_index=np.array([0, 0, 1, 2]),
            modality_tokens=np.array([[9, 0, 0, 0], [9, 1, 0, 0], [0, 0, 3, 2], [0, 0, 0, 0]]),
            network_ns=np.array([[0.0, 0.0], [0.0, 2.0], [1.0, 0.0], [3.0, 4.0]]),
            think_ns=np.array([-1, 0, 5, -1]),
            constrained=flags,
            extra_key=Labels.of(["", "", "k", "k"]),
            request_id=list("abcd"),
        ),
        ends_by_eos=flags,
    )
    assert {name: count(table) for name, (_, count) in FEATURES.items()} == {
        "max_tokens": 2, "deadline": 3, "slo_target": 1, "slo_class": 3, "tenant": 1, "client": 2, "model": 0,
        "prefix_group": 1, "streaming": 1, "content": 3, "small_content": 1, "eos": 3, "session": 3,
        "round_index": 2, "modality_tokens": 2, "network": 3, "think": 1, "constrained": 3, "extra_key": 2,
        "request_id": 4,
    }  # fmt: skip
    plain = RequestTable.build(four, four + 600, four + 5)
    assert {name for name, (_, count) in FEATURES.items() if count(plain)} == set()


def blis(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "blis_py", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_convert_states_what_it_read_what_it_wrote_and_what_was_lost(tmp_path: Path) -> None:
    done = blis("convert", "mixed-slo", tmp_path / "day.csv", "--num-requests", "50")
    assert done.returncode == 0, done.stderr
    assert "lost: deadlines (of " in done.stderr
    assert f"{tmp_path / 'day.csv'}: 50 requests as Azure LLM trace" in done.stderr
    assert done.stdout == ""
    again = blis("convert", tmp_path / "day.csv", tmp_path / "day.yaml", "--limit", "7", "--time-scale", "2")
    assert (tmp_path / "day.csv").read_text().startswith("arrival_s"), "the source was written over"
    assert again.returncode == 2
    assert "would be written over" in again.stderr
    again = blis("convert", tmp_path / "day.csv", tmp_path / "v2.yaml", "--limit", "7", "--time-scale", "2")
    assert "read as Azure LLM inference trace: it has arrival_s" in again.stderr
    first, last = read_trace(tmp_path / "v2.csv"), read_trace(tmp_path / "day.csv").limited(7)
    assert np.allclose(first.arrival_ns, 2 * last.arrival_ns, atol=1)


@pytest.mark.slow
def test_a_recording_without_times_gets_those_given_by_flags(tmp_path: Path) -> None:
    talk = '[{"conversations": [{"value": "how are you today"}, {"value": "fine"}]}' + (
        ', {"conversations": [{"value": "how are you today"}, {"value": "fine"}]}' * 199 + "]"
    )
    (tmp_path / "s.json").write_text(talk)
    done = blis("convert", tmp_path / "s.json", tmp_path / "s.csv", "--rate", "10")
    assert "Poisson process at 10/s" in done.stderr, done.stderr
    span_s = read_trace(tmp_path / "s.csv").arrival_ns[-1] / 1e9
    assert 15 < span_s < 26
    done = blis("convert", tmp_path / "s.json", tmp_path / "s.csv")
    assert "all requests come at once; give --rate or --concurrency" in done.stderr


@pytest.mark.slow
def test_compose_merges_traces_each_at_its_own_pace(tmp_path: Path) -> None:
    rows = "".join(f"{second},10,{second + 1}\n" for second in range(3))
    (tmp_path / "a.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    source = tmp_path / "a.csv"
    both = tmp_path / "both.csv"
    done = blis("compose", "--from", source, "--from", source, "--scale", "1,0.5", "--out", both)
    assert done.returncode == 0, done.stderr
    table = read_trace(both)
    assert (table.arrival_ns / 1e9).tolist() == [0, 0, 1, 2, 2, 4]
    assert sorted(table.ids())[0] == "a-0/request_0"


@pytest.mark.slow
def test_compose_of_specs_adds_their_rates(tmp_path: Path) -> None:
    from blis_py.workload import generate
    from blis_py.workload.spec import load_spec

    done = blis("compose", "--from", "mixed-slo", "--from", "mixed-slo", "--scale", "1,2")
    assert done.returncode == 0, done.stderr
    (tmp_path / "both.yaml").write_text(done.stdout)
    spec = load_spec(tmp_path / "both.yaml")
    assert spec.aggregate_rate == pytest.approx(9.0)
    rates = {client.id: client.rate_fraction for client in spec.clients}
    assert rates["mixed-slo-1/chat"] == pytest.approx(2 * rates["mixed-slo-0/chat"])
    assert len(generate(spec, seed=1, num_requests=100)) == 100


@pytest.mark.slow
def test_cohorts_are_composed_like_clients_and_windows_are_not(tmp_path: Path) -> None:
    from blis_py.workload.spec import load_spec

    lengths = "{type: constant, params: {value: 9}}"
    team = (
        f"population: 2, rate_fraction: 1, arrival: {{process: poisson}}, input_distribution: {lengths}, "
        f"output_distribution: {lengths}"
    )
    path = tmp_path / "team.yaml"
    path.write_text(f"version: 2\naggregate_rate: 3\nnum_requests: 10\ncohorts: [{{id: t, {team}}}]\n")
    rates = tmp_path / "even.yaml"
    rates.write_text(path.read_text())
    done = blis("compose", "--from", path, "--from", rates)
    assert done.returncode == 0, done.stderr
    (tmp_path / "both.yaml").write_text(done.stdout)
    spec = load_spec(tmp_path / "both.yaml")
    shares = [client.arrivals.rate for client in spec.resolved() if client.name.startswith("team/t-")]
    assert shares == pytest.approx([1.5, 1.5])
    path.write_text(path.read_text().replace("{id: t,", "{id: t, spike: {start_time_us: 0, duration_us: 9},"))
    done = blis("compose", "--from", path, "--from", rates)
    assert done.returncode == 2
    assert "cohorts[0]: cannot be composed" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("compose", "--from", "mixed-slo"), "at least two"),
        (("compose", "--from", "mixed-slo", "--from", "chat", "--scale", "1"), "a factor for every source"),
        (("convert", "mixed-slo"), "no file to write"),
        (("convert", "/nonexistent/a.csv", "b.csv"), "/nonexistent/a.csv"),
    ],
)
def test_what_cannot_be_is_one_clear_error(arguments: tuple[str, ...], part: str) -> None:
    done = blis(*arguments)
    assert done.returncode == 2
    assert part in done.stderr
    assert done.stderr.count("\n") == 1
