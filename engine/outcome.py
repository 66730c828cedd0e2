"""Outcome of a step: tokens and log-probabilities, on the device or on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(slots=True)
class SampledLogprobs:
    """Log-probabilities of the B rows that request them."""

    own: torch.Tensor
    """[B] log-probability of the chosen token."""
    values: torch.Tensor
    """[B, k] log-probabilities of the most likely tokens."""
    ids: torch.Tensor
    """[B, k] ids of those tokens."""
    rows: list[int]
    """Rows of the step to which these belong."""


@dataclass(slots=True)
class StepOutcome:
    """Outcome of one step; the tensors are on the device, or after `to_host` on the host."""

    tokens: torch.Tensor
    """[R] int64 sampled tokens, one for each emitting sequence."""
    logprobs: SampledLogprobs | None = None
    active_experts: torch.Tensor | None = None
    """Number of experts with a token, a single number; None if not counted."""
    _ids: NDArray[np.int64] | None = field(default=None, init=False)

    def ids(self) -> NDArray[np.int64]:
        """[R] sampled tokens, on the host."""
        if self._ids is None:
            self._ids = self.tokens.numpy()
        return self._ids

    def to_host(self) -> StepOutcome:
        """Start copies into pinned memory, on the launching side. Read them after the ticket is done."""
        if self.tokens.is_cpu:
            return self
        logprobs, active = self.logprobs, self.active_experts
        return StepOutcome(
            _pinned(self.tokens),
            logprobs
            and SampledLogprobs(
                _pinned(logprobs.own), _pinned(logprobs.values), _pinned(logprobs.ids), logprobs.rows
            ),
            active if active is None else _pinned(active),
        )

    def experts(self) -> int:
        """Number of experts with a token; -1 if not counted. On the host."""
        return -1 if self.active_experts is None else int(self.active_experts)


def nothing() -> StepOutcome:
    """Outcome of a step without emitting sequences."""
    return StepOutcome(torch.zeros(0, dtype=torch.int64))


def _pinned(there: torch.Tensor) -> torch.Tensor:
    return torch.empty(there.shape, dtype=there.dtype, pin_memory=True).copy_(there, non_blocking=True)
