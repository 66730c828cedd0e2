from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_py.errors import InputError
from blis_py.files.yaml_files import MAX_LEVELS, dump_yaml, load_mapping, parse_yaml

LAUGHS = "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
DEEP_BY_ALIASES = "a0: &a0 [1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 200))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "more than 64 levels"),
        ("{a: " * 100_000, "more than 64 levels"),
        ("- " * 100_000, "more than 64 levels"),
        ("".join(" " * n + "a:\n" for n in range(2000)), "more than 64 levels"),
        (DEEP_BY_ALIASES, "more than 64 levels"),
        (LAUGHS, "more than 2,000,000 values"),
        ("a: &a [*a]", "*a: contains itself"),
        ("a: &a {b: *a}", "*a: contains itself"),
        ("a: !!int x", "not a valid int"),
        ("a: 0x_", "not a valid int"),
        ("a: " + "9" * 5000, "not a valid int"),
        ("a: !!float x", "not a valid float"),
        ("a: !!bool maybe", "not a valid bool"),
        ("a: !!binary x", "could not determine a constructor"),
        ("a: !!set {x}", "could not determine a constructor"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("{[a]: 1}", "a key must be plain text"),
        ("a: 1\na: 2", "key 'a' is given twice"),
        ('a: "\\ud800"', "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("a: *b", "not valid YAML"),
        ("a: 1\n---\na: 2", "not valid YAML"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_what_cannot_be_loaded_is_one_clear_error(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_mapping(path)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).isprintable()


def test_errors_name_the_line() -> None:
    with pytest.raises(InputError, match=r"^x\.yaml:3: "):
        parse_yaml("a: 1\nb: 2\nc: !!int x\n", Path("x.yaml"))


@pytest.mark.parametrize("levels", [MAX_LEVELS, MAX_LEVELS + 1])
def test_the_deepest_that_is_read_has_64_levels(levels: int) -> None:
    text = "[" * levels + "]" * levels
    if levels <= MAX_LEVELS:
        assert str(parse_yaml(text)).count("[") == levels
    else:
        with pytest.raises(InputError):
            parse_yaml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6", 1e6),
        ("1e-6", 1e-6),
        ("-2.5E+3", -2500.0),
        (".5", 0.5),
        ("0x10", 16),
        ("1_000", 1000),
        (".inf", math.inf),
        ("1:30", "1:30"),  # 90 in YAML 1.1
        ("2023-11-16", "2023-11-16"),
        ("2023-02-30", "2023-02-30"),
        ("!!timestamp 5", "5"),
        ("yes", True),
        ("~", None),
        ("1.2.3", "1.2.3"),
    ],
)
def test_scalars_are_what_they_look_like(text: str, value: Any) -> None:
    assert parse_yaml(text) == value
    assert type(parse_yaml(text)) is type(value)


def test_anchors_and_merges_work_within_bounds() -> None:
    assert parse_yaml("a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a") == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 1, "y": 2},
    }


ODD = st.sampled_from(
    ["1e5", "1E-3", "1:30", "007", "0x1F", "1_000", "2023-01-01", "yes", "null", "=1", "- a", "é😀"]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | ODD
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | ODD, inner, max_size=4)
)


@pytest.mark.slow
@given(TREES)
def test_what_is_written_is_read_back_equal(tree: Any) -> None:
    assert parse_yaml(dump_yaml(tree)) == tree
