"""A step of an autoregressive instance: what the scheduler plans and the driver executes."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.core.features import StepFeatures
from blis_py.core.request import Request

Prefills = list[tuple[Request, int]]


class Step:
    """A planned step. `Scheduler.decoding` lists the requests that compute one token in it."""

    __slots__ = ("admitted", "features", "preempted", "prefills")

    def __init__(
        self,
        features: StepFeatures,
        prefills: Sequence[tuple[Request, int]] = (),
        admitted: Sequence[Request] = (),
        preempted: Sequence[Request] = (),
    ) -> None:
        self.features = features
        self.prefills = prefills
        """Requests computing (part of) a prompt, with the number of tokens."""
        self.admitted = admitted
        self.preempted = preempted
