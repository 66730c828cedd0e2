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
from engine.outcome import StepOutcome
from engine.timing import FlightTimer


@dataclass(slots=True)
class Flight:
    """A launched step whose outcome is not known yet. Holds everything that its forward reads."""

    step: Step
    batch: Batch
    requests: list[Request]
    """Sequences that compute in this step."""
    ticket: Ticket[StepOutcome]
    """Ticket of its outcome; while sampling is pending, of its forward."""
    timer: FlightTimer
    complete: bool = True
    """Whether none of them can have left, or been retracted, since the launch."""
    mask: BatchMask | None = None
    """Grammar mask of the allowed tokens, if any row is constrained."""
    to_sample: Callable[[torch.Tensor], StepOutcome] | None = None
    """With a mask, sampling waits for the tokens of the previous step, which determine the allowed ones."""
