"""Prices of GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py.errors import InputError
from blis_py.planning.prices import Prices, parse_prices


@pytest.mark.parametrize("price", [0, -1, 1e12, float("nan"), True, "2"])
def test_a_price_is_a_positive_number(price: Any) -> None:
    with pytest.raises(InputError, match="is not a price"):
        Prices({"h100": price})
    if isinstance(price, float | int) and not isinstance(price, bool):
        with pytest.raises(InputError, match="is not the price of a GPU"):
            parse_prices([f"h100={price}"])


def test_prices_are_found_by_any_spelling_and_those_missing_once() -> None:
    prices = Prices({"H100": 2.5}, bundled=False)
    found = prices.of("h100")
    assert found is not None
    assert (found.per_hour, found.source) == (2.5, "as given")
    assert prices.missing(["l4", "h100", "l4", "b200"]) == ["l4", "b200"]
    assert parse_prices(["h100=2.5,l4=$1", "b200=3"]) == {"h100": 2.5, "l4": 1.0, "b200": 3.0}
    with pytest.raises(InputError, match="no such GPU"):
        Prices({"nosuch": 1.0}).check(["h100"])
    Prices({"own": 1.0}).check(["own"])
