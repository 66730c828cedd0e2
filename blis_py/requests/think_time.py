"""Think times between an answer and the next turn: distributions, and their flag syntax."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from blis_py.core.bounds import clock_ns
from blis_py.core.flag_texts import decimal
from blis_py.errors import InputError
from blis_py.requests.table import Ints

LONGEST_NS = 30 * 86_400 * 10**9
"""Longest pause, one month; sums of many pauses stay within the clock."""
_UNITS_NS = {"us": 1_000, "µs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>us|µs|ms|s|m|h)", re.ASCII)
_LAWS = {
    "constant": ("value",),
    "exponential": ("mean", "min", "max"),
    "lognormal": ("mu", "sigma", "min", "max"),
}
_NEEDED = {"constant": 1, "exponential": 1, "lognormal": 2}
_PLAIN = ("mu", "sigma")
FIX = "write constant:value=800ms, exponential:mean=2s or lognormal:mu=1.1,sigma=0.8,min=200ms,max=60s"


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """A distribution of pauses.

    Attributes:
        law: `constant`, `exponential` or `lognormal`.
        params: `value`, `mean`, `min` and `max` in ns; `mu` and `sigma` of the logarithm of seconds.
    """

    law: str
    params: dict[str, float]

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        """Draw `count` pauses in ns, whole microseconds; a longer draw extends a shorter one."""
        params = self.params
        if self.law == "constant":
            return np.full(count, int(params["value"]), dtype=np.int64)
        if self.law == "exponential":
            drawn_ns = rng.standard_exponential(count) * params["mean"]
        else:
            with np.errstate(over="ignore"):
                drawn_ns = np.exp(params["mu"] + params["sigma"] * rng.standard_normal(count)) * 1e9
        drawn_ns = np.clip(drawn_ns, params.get("min", 0.0), params.get("max", float(LONGEST_NS)))
        pauses_ns: Ints = np.floor(drawn_ns / 1e3).astype(np.int64) * 1000
        return pauses_ns


def think_time(text: str) -> ThinkTime:
    """A distribution from its flag: `constant:value=800ms`, `lognormal:mu=1.1,sigma=0.8`,
    `lognormal:1.1,0.8`.

    Raises:
        InputError: unreadable, or no pause can be drawn from it.
    """

    key = "--think-time-dist"

    def refuse(problem: str) -> InputError:
        return InputError(problem, key=key, value=text, fix=FIX)

    law, _, rest = text.strip().partition(":")
    if law not in _LAWS:
        raise refuse(f"the laws are {', '.join(_LAWS)}")
    params: dict[str, float] = {}
    for place, part in enumerate(rest.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and place < len(_LAWS[law]):
            name, value = _LAWS[law][place], name
        if name not in _LAWS[law] or name in params:
            raise refuse(f"{law} has {', '.join(_LAWS[law])}, each once")
        params[name] = _number(value, refuse) if name in _PLAIN else _duration_ns(value, key, refuse)
    missing = [name for name in _LAWS[law][: _NEEDED[law]] if name not in params]
    if missing:
        raise refuse(f"{law} needs {missing[0]}")
    if params.get("min", 0) > params.get("max", math.inf):
        raise refuse("min is above max")
    if params.get("sigma", 0) < 0:
        raise refuse("sigma must not be negative")
    if max(params.get(name, 0) for name in ("value", "mean", "min", "max")) > LONGEST_NS:
        raise refuse("more than a month between two turns")
    return ThinkTime(law, params)


def _number(text: str, refuse: Callable[[str], InputError]) -> float:
    try:
        number = decimal(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise refuse("mu and sigma are numbers")
    return number


def _duration_ns(text: str, key: str, refuse: Callable[[str], InputError]) -> int:
    """`800ms`, in whole microseconds; `0` needs no unit."""
    match = _DURATION.fullmatch(text)
    if match is None:
        if text == "0":
            return 0
        raise refuse("a time has a unit")
    return clock_ns(float(match["number"]), _UNITS_NS[match["unit"]], key=key) // 1000 * 1000
