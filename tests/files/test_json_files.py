from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.errors import InputError
from blis_py.files.json_files import MAX_LEVELS, load_object, parse_json

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "more than 64 levels"),
        ('{"a":' * 100_000, "more than 64 levels"),
        ("[" * 65 + "]" * 65, "more than 64 levels"),
        ('{"a": 1, "a": 2}', "key 'a' is given twice"),
        ('{"x": [{"a": 1, "b:": 2, "a": 2}]}', "key 'a' is given twice"),
        ('{"a": "\\ud800"}', "half a pair of surrogates"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        ('{"a": 1', "not JSON"),
        ("", "not JSON"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_cannot_be_loaded_is_one_clear_error(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_object(path)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1]")
    with pytest.raises(InputError, match="must be a JSON object"):
        load_object(tmp_path / "x.json")


def test_the_deepest_that_is_read_has_64_levels() -> None:
    assert str(parse_json("[" * MAX_LEVELS + "]" * MAX_LEVELS)).count("[") == MAX_LEVELS


@pytest.mark.slow
@given(TREES)
def test_everything_else_is_read_as_it_is(tree: Any) -> None:
    for escaped in (True, False):
        assert parse_json(json.dumps(tree, ensure_ascii=escaped)) == tree
