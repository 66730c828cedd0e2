"""Files of one row, tokens at one time, and blocks that are the same only behind the same."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from blis_py.core.bounds import MAX_TOKENS
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces import read_trace
from blis_py.traces.azure import _offset_ns
from blis_py.traces.compose import merged
from blis_py.traces.files import writing
from blis_py.traces.itl import read_gaps
from blis_py.traces.kinds import joined, without_room
from blis_py.traces.llmservingsim import BLOCK_TOKENS, _SharedPrompts
from blis_py.traces.tracev2 import runs_of


def test_a_trace_of_a_single_request_is_read(tmp_path: Path) -> None:
    for name, text in {
        "a.csv": "arrival_s,input_tokens,output_tokens,slo_class,tenant_id\n0.5,10,3,batch,a\n",
        "b.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,10,3\n",
        "c.jsonl": '{"timestamp": 20, "input_length": 10, "output_length": 3, "hash_ids": [1]}\n',
    }.items():
        (tmp_path / name).write_text(text)
        table = read_trace(tmp_path / name)
        assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == ([10], [3])


def test_a_column_of_constant_pieces_stays_constant_if_their_values_are_the_same() -> None:
    one, two = np.broadcast_to(np.array([7]), 1), np.broadcast_to(np.array([7]), 3)
    assert joined([one, two]).strides == (0,)
    assert joined([one, two]).tolist() == [7] * 4
    assert joined([one, np.broadcast_to(np.array([8]), 1)]).tolist() == [7, 8]


def test_a_column_keeps_neither_the_table_it_was_read_from_nor_equal_numbers() -> None:
    table = np.array([[7, 1], [7, 2], [7, 3]])
    constant, varied = without_room(table[:, 0]), without_room(table[:, 1])
    assert (constant.strides, constant.tolist()) == ((0,), [7, 7, 7])
    assert varied.tolist() == [1, 2, 3]
    assert not any(np.shares_memory(column, table) for column in (constant, varied))


@pytest.mark.parametrize(("year", "is_read"), [(1969, False), (1970, True), (2200, True), (2201, False)])
def test_dates_of_1970_to_2200_are_read(tmp_path: Path, year: int, is_read: bool) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{year}-11-16 18:15:46.6805900,10,3\n")
    if is_read:
        assert len(read_trace(path)) == 1
    else:
        with pytest.raises(InputError, match="1970 to 2200"):
            read_trace(path)


def test_two_tokens_may_come_at_once_but_none_before_the_one_in_front_of_it(tmp_path: Path) -> None:
    path = tmp_path / "itl.csv"
    header = "request_id,chunk_index,timestamp_us\n"
    path.write_text(f"{header}0,0,100\n0,1,100\n0,2,130\n")
    assert read_gaps(path, np.array([0])).values.tolist() == [0, 30e-6]
    path.write_text(f"{header}0,0,100\n0,1,99\n")
    with pytest.raises(InputError, match="before the one in front of it"):
        read_gaps(path, np.array([0]))


def test_a_block_at_the_beginning_is_not_the_same_tokens_behind_others() -> None:
    """The first prompt is blocks A, B, C; the second begins with C."""
    a, b, c = ([letter] * BLOCK_TOKENS for letter in (1, 2, 3))
    prompts = _SharedPrompts()
    for ids in (a + b + c, c + a, a + b):
        prompts.add(ids, len(ids))
    lengths = [48, 32, 32]
    table = RequestTable.build(
        arrival_ns=np.zeros(3, np.int64), prompt_tokens=np.array(lengths), output_tokens=np.ones(3, np.int64)
    )
    shared = prompts.shared(table)
    assert [shared.contents[row] if row >= 0 else () for row in shared.content] == [
        ((0, BLOCK_TOKENS), (1, BLOCK_TOKENS)),
        (),
        ((0, BLOCK_TOKENS), (1, BLOCK_TOKENS)),
    ]


def test_requests_without_a_network_keep_none_beside_those_with_one() -> None:
    near, far = (
        RequestTable.build(
            arrival_ns=np.arange(2), prompt_tokens=np.full(2, 9), output_tokens=np.ones(2, np.int64), **more
        )
        for more in ({}, {"network_ns": np.full((2, 2), 5.0)})
    )
    both = merged([near, far], ["near", "far"])
    assert both.network_ns is not None
    assert sorted(both.network_ns[:, 0].tolist()) == [0, 0, 5, 5]


@pytest.mark.parametrize(
    ("tokens", "valid"), [(0, False), (1, True), (MAX_TOKENS, True), (MAX_TOKENS + 1, False)]
)
def test_content_has_at_least_one_token_and_no_more_than_any_prompt(tokens: int, valid: bool) -> None:
    assert runs_of(f'[["a", {tokens}]]') == ((("a", tokens),) if valid else None)


def test_a_compressed_file_says_nothing_of_when_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    with writing(path) as file:
        file.write("a\n")
    assert path.read_bytes()[4:8] == bytes(4)
    assert gzip.decompress(path.read_bytes()) == b"a\n"


def test_utc_offsets_are_hours_and_minutes() -> None:
    second = 10**9
    assert [_offset_ns(text) for text in (None, "Z", "+05:30", "-01:15")] == [
        0,
        0,
        330 * 60 * second,
        -75 * 60 * second,
    ]
