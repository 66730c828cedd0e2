"""A step of an autoregressive instance: what the scheduler plans and the driver executes."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.features import StepFeatures
from blis_py.core.request import Request

Prefills = list[tuple[Request, int]]


@mypyc_attr(acyclic=True, free_list_len=1)
class Step:
    """A planned step. `Scheduler.decoding` lists the requests that compute one token in it."""

    __slots__ = ("admitted", "emissions", "end_tick", "ending", "features", "preempted", "prefills")

    def __init__(
        self,
        features: StepFeatures,
        prefills: Sequence[tuple[Request, int]] = (),
        admitted: Sequence[Request] = (),
        preempted: Sequence[Request] = (),
    ) -> None:
        self.features = features
        self.prefills = prefills
        """Requests computing (part of) a prompt, with the number of tokens; and those whose decode steps may
        emit several tokens, with the positions computed."""
        self.admitted = admitted
        self.preempted = preempted
        self.emissions: dict[Request, int] | None = None
        """Tokens the step emits for a request, if more than one."""
        self.end_tick = -1
        """Index of the step after it and the steps launched with it; -1 until then."""
        self.ending: list[Request] = []
        """Requests that end with it, as far as known at launch."""
