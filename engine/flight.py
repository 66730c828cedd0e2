"""A step in flight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from blis_py.core.request import Request
from blis_py.core.step import Step
from engine.executor import Batch
from engine.grammar.masks import BatchMask
from engine.launching import Ticket
from engine.outcome import Outcome
from engine.timing import FlightTimer


@dataclass(slots=True)
class Flight:
    """A step that is launched, and whose outcome is not known. All that its forward reads is kept here."""

    step: Step
    batch: Batch
    requests: list[Request]
    """Who computes something in it."""
    ticket: Ticket[Outcome]
    """Of its outcome; of its forward, as long as it is still to be sampled."""
    timer: FlightTimer
    complete: bool = True
    """Whether none of them can have left since it was launched."""
    mask: BatchMask | None = None
    """Which tokens grammars allow, where there are any."""
    to_sample: Callable[[torch.Tensor], Outcome] | None = None
    """With a mask, sampling waits for the tokens of the step before: they say what may come next."""
