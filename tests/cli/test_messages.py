"""Messages stay on one line, of bounded length, whatever was found."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py.errors import InputError


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        "x" * 10**6,
        10**5000,
        nested(100_000),
        ["x" * 500] * 500,
        dict.fromkeys(range(999), "y" * 99),
        "a\nb\x1b[31m",
        "\ud800",
    ],
    ids=["text", "number", "nested", "list", "mapping", "escape", "surrogate"],
)
def test_a_value_is_cut_where_it_is_long(value: Any) -> None:
    text = str(InputError("must be short", file="x.yaml", key="a.b", value=value, fix="cut it"))
    assert text.startswith("x.yaml: a.b: must be short (found ")
    assert text.endswith("); cut it")
    assert text.isprintable()
    assert len(text) < 2500


def test_every_other_part_is_cut_as_well() -> None:
    long = "very long\n" * 10_000
    text = str(InputError(long, file=long, key=long, fix=long))
    assert text.isprintable()
    assert len(text) < 4000


def test_a_short_value_is_quoted_as_it_is() -> None:
    assert "(found 'gold')" in str(InputError("no", value="gold"))
    assert "(found [1, 2.5, None])" in str(InputError("no", value=[1, 2.5, None]))
    assert InputError("no", value="x" * 999).value == "x" * 999
