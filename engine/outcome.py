"""What came of a step: tokens and log-probabilities, on the device, on their way, and on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(slots=True)
class SampledLogprobs:
    """Of the B rows that asked for them."""

    own: torch.Tensor
    """[B] of the token that was chosen."""
    values: torch.Tensor
    """[B, k] of the most likely tokens."""
    ids: torch.Tensor
    """[B, k]"""
    rows: list[int]
    """Of the step, which these are."""


@dataclass(slots=True)
class Outcome:
    """Of one step; the tensors are on the device, or on the host behind `to_host`."""

    tokens: torch.Tensor
    """[R] int64, one for each emitting sequence."""
    logprobs: SampledLogprobs | None = None
    active_experts: torch.Tensor | None = None
    """How many had a token, a single number; None where nobody counts."""
    _ids: NDArray[np.int64] | None = field(default=None, init=False)

    def ids(self) -> NDArray[np.int64]:
        """The tokens, on the host."""
        if self._ids is None:
            self._ids = self.tokens.numpy()
        return self._ids

    def to_host(self) -> Outcome:
        """On the launching side: starts the copies into pinned memory. Read them when they are done."""
        if self.tokens.is_cpu:
            return self
        told, active = self.logprobs, self.active_experts
        return Outcome(
            _pinned(self.tokens),
            told and SampledLogprobs(_pinned(told.own), _pinned(told.values), _pinned(told.ids), told.rows),
            active if active is None else _pinned(active),
        )

    def experts(self) -> int:
        """How many experts had a token; -1 where nobody counted. On the host."""
        return -1 if self.active_experts is None else int(self.active_experts)


def nothing() -> Outcome:
    """Of a step in which nobody emits."""
    return Outcome(torch.zeros(0, dtype=torch.int64))


def _pinned(there: torch.Tensor) -> torch.Tensor:
    return torch.empty(there.shape, dtype=there.dtype, pin_memory=True).copy_(there, non_blocking=True)
