"""Columns of TraceV2: deadlines, networks, prefixes, contents and their limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from written_traces import v2

from blis_py.core.bounds import MAX_TOKENS
from blis_py.errors import InputError
from blis_py.traces.bad_rows import BadRows
from blis_py.traces.reading import Reading


def test_a_negative_network_is_none_and_a_deadline_of_minus_one_too(tmp_path: Path) -> None:
    table = v2(
        tmp_path, "network_rtt_ns,network_token_ns,deadline_ns", "0,0,5,2,-7,0.25,-1", "1,3,5,2,,1e99,9"
    )
    assert table.network_ns is not None
    assert table.network_ns.tolist() == [[0.0, 0.25], [0.0, 3.6e12]]
    assert table.deadline_ns.tolist() == [-1, 9]
    with pytest.raises(InputError):
        v2(tmp_path, "deadline_ns", "0,0,5,2,-2")


def test_what_is_bad_without_a_bad_row_is_left_out_too(tmp_path: Path) -> None:
    """The first row lends its group a prefix, and its prompt is too long; without it the next is empty."""
    rows = (f"0,0,{MAX_TOKENS},2,g,10", "1,3,0,2,g,0", "2,4,1,2,g,7", "3,5,1,2,,0")
    reading = Reading(bad=BadRows(skip=True))
    table = v2(tmp_path, "prefix_group,prefix_length", *rows, reading=reading)
    assert table.prompt_tokens.tolist() == [8, 1]
    assert reading.bad.count == 2


def test_empty_cells_have_their_defaults_and_numbers_their_limits(tmp_path: Path) -> None:
    table = v2(
        tmp_path, "round_index,session_id,image_tokens,audio_tokens", "0,0,5,2,,a,,3", "1,1,6,1,1,a,2,"
    )
    assert table.round_index is not None
    assert table.modality_tokens is not None
    assert table.round_index.tolist() == [0, 1]
    assert sorted(map(sum, table.modality_tokens.tolist())) == [2, 3]
    for cells in ("0,0,-1,2", f"0,0,{MAX_TOKENS + 1},2", "0,0,5,-1", "-1,0,5,2"):
        with pytest.raises(InputError):
            v2(tmp_path, "max_tokens", f"{cells},0")
    for value in ("-1", str(MAX_TOKENS + 1)):
        with pytest.raises(InputError, match="max_tokens"):
            v2(tmp_path, "max_tokens", f"0,0,5,2,{value}")
    assert v2(tmp_path, "max_tokens", f"0,0,{MAX_TOKENS},2,{MAX_TOKENS}").max_tokens.tolist() == [MAX_TOKENS]


def test_a_group_shares_a_prefix_of_a_single_token_and_a_row_its_own_content(tmp_path: Path) -> None:
    table = v2(
        tmp_path,
        "prefix_group,prefix_length,content",
        *('0,0,5,2,g,1,""', '1,1,5,2,,0,"[[""x"", 3]]"', '2,2,5,2,,0,""', '3,3,5,2,g,1,""'),
    )
    runs = [table.contents[at] if at >= 0 else () for at in table.content.tolist()]
    assert runs == [(("g", 1),), (("x", 3),), (), (("g", 1),)]
    assert table.prompt_tokens.tolist() == [6, 5, 5, 6]
