"""Hourly GPU prices: as given, or from the bundled list; never estimated."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from blis_py.config.layers import did_you_mean
from blis_py.core.flag_texts import decimal
from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.profiles import known_names, squeeze, stem_of
from blis_py.files.yaml_files import load_mapping

_FIX = "write h100=2.5, in dollars per GPU and hour"
_MAX = 1e6


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per GPU and hour, and their source."""

    per_hour: float
    source: str


class Prices:
    """Prices by GPU.

    Args:
        given: dollars per GPU and hour by name, overriding the bundled ones.
        bundled: whether to use the bundled list.

    Raises:
        InputError: not a positive number.
    """

    def __init__(self, given: Mapping[str, Any] | None = None, *, bundled: bool = True) -> None:
        self._given: dict[str, float] = {}
        self._bundled = bundled
        for name, value in (given or {}).items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < _MAX:
                raise InputError("is not a price", key=f"--price {name}", value=value, fix=_FIX)
            self._given[_stem(name)] = float(value)

    def of(self, gpu: str) -> Price | None:
        """The price; None if unknown."""
        stem = _stem(gpu)
        if stem in self._given:
            return Price(self._given[stem], "as given")
        per_second, source = _listed() if self._bundled else ({}, "")
        return Price(per_second[stem] * 3600, source) if stem in per_second else None

    def check(self, gpus: Iterable[str]) -> None:
        """
        Raises:
            InputError: a price for a GPU that is neither known nor among these.
        """
        known = {_stem(gpu) for gpu in gpus}
        for name in self._given:
            if name not in known and stem_of("gpus", name) is None:
                fix = did_you_mean(name, {*known, *known_names("gpus")})
                raise InputError("no such GPU", key="--price", value=name, fix=fix)

    def missing(self, gpus: Iterable[str]) -> list[str]:
        """GPUs without a price."""
        return [gpu for gpu in dict.fromkeys(gpus) if self.of(gpu) is None]


def parse_prices(texts: Iterable[str]) -> dict[str, float]:
    """Prices by GPU from `h100=2.5,l40s=0.9`.

    Raises:
        InputError: malformed text, or a duplicate GPU.
    """
    prices: dict[str, float] = {}
    for pair in (part for text in texts for part in text.split(",")):
        name, equals, number = (part.strip() for part in pair.partition("="))
        try:
            price = decimal(number.removeprefix("$"))
        except ValueError:
            price = math.nan
        if not equals or not name or not 0 < price < _MAX or name in prices:
            raise InputError("is not the price of a GPU", key="--price", value=pair, fix=_FIX)
        prices[name] = price
    return prices


@cache
def _listed() -> tuple[dict[str, float], str]:
    values = load_mapping(root("profiles") / "prices.yaml")
    return dict(values["dollars_per_second"]), " ".join(str(values["source"]).split())


def _stem(gpu: str) -> str:
    return stem_of("gpus", gpu) or squeeze(gpu)
