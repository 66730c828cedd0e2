"""Deciders: whether prefill and decode of a request run on different instances.

A decider is a class and one line in `DECIDERS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from blis_py.cluster.extensions import named
from blis_py.cluster.routing.signals import Signals
from blis_py.cluster.topology import Disaggregation
from blis_py.core.request import Request


class Decider(Protocol):
    """Decision after the choice of the decode instance."""

    looks_at_load: bool
    """Whether it reads the signals of the decode instances."""

    def __call__(self, request: Request, decode: int) -> bool:
        """Whether to compute the prompt of a request on another instance than `decode`."""
        ...


class Always:
    """Every request."""

    looks_at_load = False

    def __init__(self, settings: Disaggregation, signals: Signals) -> None: ...

    def __call__(self, request: Request, decode: int) -> bool:
        return True


class Never:
    """No request: prefill instances remain idle."""

    looks_at_load = False

    def __init__(self, settings: Disaggregation, signals: Signals) -> None: ...

    def __call__(self, request: Request, decode: int) -> bool:
        return False


class PrefixThreshold:
    """Requests with more prompt tokens than a threshold, net of those that the decode instance has cached, as
    last reported."""

    looks_at_load = True

    def __init__(self, settings: Disaggregation, signals: Signals) -> None:
        self._threshold_tokens, self._block_size = settings.threshold_tokens, signals.block_size
        self._prefixes = signals.watch_prefixes()

    def __call__(self, request: Request, decode: int) -> bool:
        bit, cached = 1 << decode, 0
        for holders, blocks in self._prefixes.held(request):
            if holders & bit:
                cached = blocks
        return request.prompt_tokens - cached * self._block_size > self._threshold_tokens


class Load:
    """Requests whose decode instance has at least so many requests in flight."""

    looks_at_load = True

    def __init__(self, settings: Disaggregation, signals: Signals) -> None:
        self._signals, self._threshold = signals, settings.load_threshold

    def __call__(self, request: Request, decode: int) -> bool:
        return self._signals.in_flight[decode] >= self._threshold


DECIDERS: dict[str, Callable[[Disaggregation, Signals], Decider]] = {
    "always": Always,
    "never": Never,
    "prefix-threshold": PrefixThreshold,
    "load": Load,
}


def decider(name: str) -> Callable[[Disaggregation, Signals], Decider]:
    """The decider of that name."""
    return named(DECIDERS, "blis_py.deciders", name, "decider", key="disaggregation.decider")
