from __future__ import annotations

import csv
from pathlib import Path

import pytest

from blis_py.errors import InputError
from blis_py.files.csv_files import check_header, csv_rows, header_of, table_rows
from blis_py.files.opening import reading


def rows(path: Path) -> list[tuple[int, list[str]]]:
    with reading(path) as text:
        return list(csv_rows(text, path))


def test_rows_come_with_the_lines_on_which_they_end(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('a,b\n\n"1\n2",3\n4,5\n')
    assert rows(path) == [(1, ["a", "b"]), (4, ["1\n2", "3"]), (5, ["4", "5"])]


def test_a_header_longer_than_the_csv_module_likes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a" * 500_000 + ",b\n")
    assert header_of(path) == ["a" * 500_000, "b"]


@pytest.mark.parametrize("text", ['a,"b\n1,2\n', 'a,b\n1,"2"x\n', 'a,"' + "b\n" * 9_000])
def test_quotes_that_lead_nowhere_are_one_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(text)
    limit = csv.field_size_limit(10_000)
    try:
        with pytest.raises(InputError, match="not CSV"):
            rows(path)
    finally:
        csv.field_size_limit(limit)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ("a,b,c,b", "b: column given twice"),
        ("a,b, b", "b: column given twice"),
        ("a,b,c,,", "(no name): column given twice"),
        ("a,c", "b: missing column; add it; the columns are a, b and, where you have them, c"),
        ("a,b,d", "d: unknown column"),
        ("a,b,cc", "cc: unknown column; did you mean c?"),
    ],
)
def test_a_header_with_surprises_is_refused_and_the_columns_are_listed(header: str, problem: str) -> None:
    names = [name.strip() for name in header.split(",")]
    with pytest.raises(InputError) as caught:
        check_header(names, Path("x.csv"), needed=("a", "b"), optional=("c",))
    assert str(caught.value).startswith(f"x.csv:1: {problem}")


def test_a_row_of_another_width_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n1\n")
    with pytest.raises(InputError, match=r"x\.csv:3: a row of 1 cells under 2 columns"):
        list(table_rows(path, ("b", "a")))
    path.write_text("a,b\n1,2\n")
    assert list(table_rows(path, ("b", "a"))) == [(2, ["2", "1"])]
