from __future__ import annotations

import csv
import gzip
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from written_traces import requests

from blis_py.errors import InputError
from blis_py.metrics.record import Outcome
from blis_py.requests.table import Labels, RequestTable
from blis_py.traces import read_trace
from blis_py.traces.tracev2 import write
from blis_py.traces.tracev2_write import _check_prefixes, _numbered
from blis_py.workload import Content, generate
from blis_py.workload.presets import synthesise
from blis_py.workload.spec import load_spec

PEER_COLUMNS = [
    *("request_id", "client_id", "tenant_id", "slo_class", "session_id", "round_index", "prefix_group"),
    *("prefix_length", "streaming", "input_tokens", "output_tokens", "text_tokens", "image_tokens"),
    *("audio_tokens", "video_tokens", "reason_ratio", "model", "deadline_us", "server_input_tokens"),
    *("arrival_time_us", "send_time_us", "first_chunk_time_us", "last_chunk_time_us", "num_chunks"),
    *("status", "error_message", "finish_reason"),
]


def written(table: RequestTable, folder: Path, name: str = "x.csv", **options: object) -> RequestTable:
    write(table, folder / "x.yaml", folder / name, **options)  # type: ignore[arg-type]
    return read_trace(folder / name)


def cells(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as text:
        return list(csv.DictReader(text))


def assert_same(one: RequestTable, other: RequestTable) -> None:
    """Equal as workloads: labels by text, shared content by what it says, names by what they are."""
    for column in fields(RequestTable):
        a, b = getattr(one, column.name), getattr(other, column.name)
        if isinstance(a, Labels):
            assert a.to_list() == b.to_list(), column.name
        elif isinstance(a, np.ndarray) and column.name != "content":
            assert np.array_equal(a, b), column.name
    rows = range(len(one))
    assert [one.id_of(row) for row in rows] == [other.id_of(row) for row in rows]
    for table in (one, other):
        assert table.content.max(initial=-1) < len(table.contents)
    runs = [
        [table.contents[at] if at >= 0 else () for at in table.content.tolist()] for table in (one, other)
    ]
    assert runs[0] == runs[1]


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\r"), max_size=6)
SEGMENT = st.tuples(st.one_of(TEXT, st.integers(0, 9)), st.integers(1, 600))


@st.composite
def tables(draw: st.DrawFn) -> RequestTable:
    count = draw(st.integers(1, 12))

    def column(values: st.SearchStrategy[int]) -> np.ndarray:
        return np.array(draw(st.lists(values, min_size=count, max_size=count)), dtype=np.int64)

    def texts(values: st.SearchStrategy[str]) -> Labels:
        return Labels.of(draw(st.lists(values, min_size=count, max_size=count)))

    in_us = draw(st.booleans())
    time = st.integers(0, 2**50).map(lambda ns: ns * 1000 if in_us else ns)
    lengths = draw(st.dictionaries(TEXT.filter(bool), st.integers(0, 5000), max_size=3))
    groups = texts(st.sampled_from(["", *lengths]))
    prefix = np.array([lengths.get(group, 0) for group in groups.to_list()], dtype=np.int64)
    known: list[Content] = [((group, tokens),) for group, tokens in lengths.items() if tokens]
    prefixes = zip(groups.to_list(), prefix.tolist(), strict=True)
    content = [known.index(((group, tokens),)) if tokens else -1 for group, tokens in prefixes]
    if draw(st.booleans()):  # prompts that share something else than a prefix group
        own = draw(st.lists(st.lists(SEGMENT, min_size=1, max_size=3), min_size=1, max_size=3))
        known += [tuple(runs) for runs in own]
        content = draw(st.lists(st.integers(-1, len(known) - 1), min_size=count, max_size=count))
    output = column(st.integers(1, 2**31 - 1))
    constrained = column(st.integers(0, 1)).astype(np.bool_)
    ids = draw(st.none() | st.lists(st.integers(0, 2**40), unique=True, min_size=count, max_size=count))
    return RequestTable.build(
        np.sort(column(time)),
        prefix + column(st.integers(1, 2**30)),
        output,
        max_tokens=output if draw(st.booleans()) else column(st.integers(0, 9)),
        deadline_ns=column(st.just(-1) | time),
        slo_class=texts(st.sampled_from(["", "critical", "batch"])),
        tenant=texts(TEXT),
        client=texts(TEXT),
        model=texts(TEXT),
        prefix_group=groups,
        prefix_tokens=prefix,
        content=np.array(content, dtype=np.int64),
        contents=tuple(known),
        streaming=column(st.integers(0, 1)).astype(np.bool_),
        slo_target_ns=column(st.just(0) | time),
        request_id=None if ids is None else [f"request_{number}" for number in ids],
        constrained=constrained if constrained.any() else None,
    )


@pytest.mark.slow
@given(tables(), st.booleans())
def test_reading_what_was_written_gives_the_same_table(table: RequestTable, packed: bool) -> None:
    with TemporaryDirectory() as folder:
        assert_same(table, written(table, Path(folder), "x.csv.gz" if packed else "x.csv"))


def test_real_prefix_sharing_survives_the_round_trip(shared_data: Path, tmp_path: Path) -> None:
    table = read_trace(shared_data / "mooncake" / "conversation_first2000.jsonl")
    assert_same(table, written(table, tmp_path))


def test_a_generated_workload_is_written_with_the_peers_columns_only(tmp_path: Path) -> None:
    table = synthesise(num_requests=100, rate=100.0, prefix_tokens=64)
    assert_same(table, written(table, tmp_path, seed=42, workload="preset:chatbot"))
    rows = cells(tmp_path / "x.csv")
    assert list(rows[0]) == PEER_COLUMNS
    assert (rows[0]["request_id"], rows[0]["prefix_length"], rows[0]["status"]) == ("0", "64", "ok")
    assert int(rows[5]["input_tokens"]) == table.prompt_tokens[5] - 64
    assert yaml.safe_load((tmp_path / "x.yaml").read_text()) == {
        "trace_version": 3,
        "time_unit": "microseconds",
        "mode": "generated",
        "warm_up_requests": 0,
        "workload_seed": 42,
        "workload_spec": "preset:chatbot",
    }


def test_bundled_workloads_survive_the_round_trip(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[2] / "workloads"
    for name in ("rag", "mixed-slo", "rag-nested", "multi-turn-chat"):
        table = generate(load_spec(folder / f"{name}.yaml"), num_requests=500)
        assert_same(table, written(table, tmp_path))


def test_measured_times_and_outcomes_are_written(tmp_path: Path) -> None:
    table = synthesise(num_requests=len(Outcome), rate=10.0, arrival="constant")
    first = np.where(np.arange(len(Outcome)) < 2, table.arrival_ns + 12_345_678, -1)
    record = SimpleNamespace(
        outcome=np.array(list(Outcome), dtype=np.int8),
        first_token_ns=first,
        last_token_ns=np.where(first >= 0, first + 10**9, -1),
        outputs=np.where(first >= 0, 3, 0),
    )
    again = written(table, tmp_path, record=record, mode="replayed")
    assert_same(table, again)
    rows = cells(tmp_path / "x.csv")
    assert rows[0]["first_chunk_time_us"] == "112345"  # 100,000 us + 12,345.678 us, truncated
    assert rows[0]["last_chunk_time_us"] == "1112345"
    assert [row["first_chunk_time_us"] for row in rows[2:]] == ["0"] * (len(Outcome) - 2)
    assert [row["status"] for row in rows] == ["ok", "ok"] + ["error"] * 2 + ["timeout"] + ["error"] * 3
    assert [row["finish_reason"] for row in rows] == ["", "length"] + [""] * 6
    assert [row["error_message"] for row in rows[2:4]] == ["rejected", "unservable"]


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    table = synthesise(num_requests=50)
    for name in ("one", "two"):
        write(table, tmp_path / f"{name}.yaml", tmp_path / f"{name}.csv.gz")
    one, two = ((tmp_path / f"{name}.csv.gz").read_bytes() for name in ("one", "two"))
    assert one == two
    assert gzip.decompress(one).startswith(b"request_id,client_id")


def test_names_that_are_no_numbers_are_kept_for_the_reader_of_the_file(tmp_path: Path) -> None:
    table = replace(synthesise(num_requests=2), request_id=["first", "second"])
    assert written(table, tmp_path).id_of(1) == "request_1"
    assert [row["x_request_id"] for row in cells(tmp_path / "x.csv")] == ["first", "second"]


def test_what_tracev2_cannot_express_is_refused(tmp_path: Path) -> None:
    table = synthesise(num_requests=3, prefix_tokens=10)
    uneven = replace(table, prefix_tokens=np.array([10, 10, 5]))
    nameless = replace(table, prefix_group=Labels.constant("", 3))
    returned = replace(table, tenant=Labels.constant("a\rb", 3))
    for bad in (uneven, nameless, returned):
        with pytest.raises(InputError, match="cannot be written"):
            written(bad, tmp_path)


def prefixed(groups: list[str], tokens: list[int]) -> RequestTable:
    table = requests(len(groups), prefix_group=Labels.of(groups))
    return replace(table, prefix_tokens=np.array(tokens))


@pytest.mark.parametrize(
    ("groups", "tokens", "message"),
    [
        (["", ""], [0, 0], ""),
        (["", "a"], [0, 4], ""),
        (["a", "a", "b"], [4, 4, 9], ""),
        (["", ""], [0, 4], "without a prefix group"),
        (["", "a"], [4, 4], "without a prefix group"),
        (["a", "a"], [0, 4], "prefixes of different lengths"),
        (["a", "b", "a"], [4, 4, 5], "prefixes of different lengths"),
    ],
)
def test_prefixes_that_cannot_be_written_are_refused(
    groups: list[str], tokens: list[int], message: str
) -> None:
    if not message:
        _check_prefixes(prefixed(groups, tokens), Path("x"))
        return
    with pytest.raises(InputError, match=message):
        _check_prefixes(prefixed(groups, tokens), Path("x"))


@pytest.mark.parametrize(
    ("names", "numbers"),
    [
        (None, [0, 1]),
        (["request_5", "request_3"], [5, 3]),
        ([f"request_{2**62 - 1}", "request_0"], [2**62 - 1, 0]),
        ([f"request_{2**62}", "request_0"], None),
        (["request_05", "request_3"], None),
        (["5", "request_3"], None),
        (["request_5", "a"], None),
        (["request_-5", "request_3"], None),
    ],
)
def test_names_are_numbers_only_where_all_of_them_are(
    names: list[str] | None, numbers: list[int] | None
) -> None:
    found, differ = _numbered(requests(2, request_id=names))
    assert found.tolist() == (numbers or [0, 1])
    assert differ == (numbers is None)
