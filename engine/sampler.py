"""Sampling of tokens from logits: each request's own parameters, for a whole batch at a time."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.emitters import Emitters
from engine.kernels.sampling import SamplingTensors, logprobs, sample
from engine.outcome import SampledLogprobs, StepOutcome
from engine.penalties import Entrant, TokenCounts
from engine.sampling_columns import (
    FILTERED,
    HELD_BACK,
    LOGPROBS,
    PENALISED,
    RANDOM,
    SamplingColumns,
    greedy_rows,
)
from engine.sequence import Sequence
from engine.upload import upload


@dataclass(slots=True)
class Penalised:
    """The rows of a batch whose logits depend on the tokens so far."""

    index: torch.Tensor
    """In the batch."""
    rows: torch.Tensor
    """In the counts."""
    penalties: torch.Tensor
    """[3, B] repetition, presence, frequency."""
    entrants: list[Entrant]
    """Sequences whose tokens are to be counted first of all; empty once that is done."""


@dataclass(slots=True)
class HeldBack:
    """Tokens that would end sequences which may not end yet."""

    index: torch.Tensor
    """In the batch, one for each pair of a row and a token."""
    tokens: torch.Tensor
    until: torch.Tensor
    """The position from which on a row may end."""


@dataclass(slots=True)
class SamplingPlan:
    """Sampling of a batch: built on the host, used on the device, alive beyond its step."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    filtered: bool
    penalised: Penalised | None = None
    held_back: HeldBack | None = None
    with_logprobs: list[int] = field(default_factory=list)
    """Rows of the batch."""
    logprobs_index: torch.Tensor | None = None
    most_logprobs: int = 0
    greedy: SamplingTensors | None = None
    """Tensors to sample with where all are greedy: the same at every position."""

    @property
    def plain(self) -> bool:
        """Whether all that is wanted is the most likely token of every row."""
        changed = (self.penalised, self.held_back, self.logprobs_index)
        return self.greedy is not None and all(part is None for part in changed)

    def at(self, positions: torch.Tensor, all_greedy: bool = False) -> SamplingTensors:
        """Sampling parameters of the tokens at these positions `[R]`."""
        return SamplingTensors(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            seeds=self.seeds,
            positions=positions,
            all_greedy=all_greedy,
            filtered=self.filtered,
        )


class Sampler:
    """Samples the next token of every emitting sequence.

    A token depends on its logits, the request's parameters and seed, and its position, and on nothing
    else in the batch. Nothing here waits for the device, nor asks the host for a token that it may not know.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._emitters: Emitters | None = None
        self._plan: SamplingPlan | None = None
        self._columns = SamplingColumns()
        self._counts = TokenCounts(device)
        self._greedy: SamplingPlan | None = None
        """Plan of the latest batch in which nothing but the most likely tokens was wanted."""

    def plan(self, emitters: Emitters) -> SamplingPlan:
        """On the host: what sampling for these sequences needs."""
        if self._plan is None or emitters is not self._emitters:
            self._emitters, self._plan = emitters, self._collect(emitters)
        return self._plan

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._counts.release(sequence)

    def launch(
        self,
        logits: torch.Tensor,
        positions: torch.Tensor,
        plan: SamplingPlan,
        bitmask: torch.Tensor | None = None,
    ) -> StepOutcome:
        """On the launching side: token ids `[R]` int64 and their log-probabilities, on the device.

        Args:
            logits: `[R, vocab]` float32.
            positions: int64, of the token each row was computed from; more than `[R]` may be given.
            bitmask: `[R, ceil(vocab / 32)]` int32, what is allowed; None = all. Where nothing is, or
            where the logits are not numbers: -1.
        """
        raw = logits
        if plan.held_back is not None:
            logits = _hold_back(logits, positions, plan.held_back)
        if plan.penalised is not None:
            logits = self._penalise(logits, plan.penalised)
        tensors = plan.greedy or plan.at(positions[: len(logits)] + 1)
        if bitmask is not None:
            tensors = replace(tensors, bitmask=bitmask)
        tokens = sample(logits, tensors)
        if plan.penalised is not None:
            chosen = tokens.index_select(0, plan.penalised.index)
            self._counts.count(plan.penalised.rows, chosen.clamp_min(0))
        if plan.logprobs_index is None:
            return StepOutcome(tokens)
        return StepOutcome(tokens, _logprobs(raw, tokens, plan))

    def _collect(self, emitters: Emitters) -> SamplingPlan:
        """All that goes to the device for it goes in one copy."""
        sequences = emitters.sequences
        needs = self._columns.needs(sequences, emitters.rows, emitters.serials)
        if not needs:
            return self._all_greedy(len(sequences))
        columns = self._columns.of(emitters.rows)
        penalised, entrants = self._penalised(sequences, columns.rows_that(PENALISED))
        held_back = _held_back(sequences, columns.rows_that(HELD_BACK))
        logprob_rows = columns.rows_that(LOGPROBS)
        index = (np.array(logprob_rows, dtype=np.int64),) if logprob_rows else ()
        parts = iter(upload(self.device, *columns[:5], *penalised, *held_back, *index))
        temperature, top_k, top_p, min_p, seeds = islice(parts, 5)
        plan = SamplingPlan(temperature, top_k, top_p, min_p, seeds, filtered=bool(needs & FILTERED))
        if penalised:
            plan.penalised = Penalised(next(parts), next(parts), next(parts), entrants)
        if held_back:
            plan.held_back = HeldBack(next(parts), next(parts), next(parts))
        if logprob_rows:
            plan.with_logprobs, plan.logprobs_index = logprob_rows, next(parts)
            plan.most_logprobs = max(sequences[row].params.logprobs or 0 for row in logprob_rows)
        if not needs & RANDOM:
            plan.greedy = plan.at(torch.zeros_like(plan.seeds), all_greedy=True)
        return plan

    def _all_greedy(self, rows: int) -> SamplingPlan:
        """The plan of a batch in which nothing but the most likely token of every row is wanted."""
        plan = self._greedy
        if plan is None or len(plan.seeds) != rows:
            temperature, top_k, top_p, min_p, seeds = upload(self.device, *greedy_rows(rows)[:5])
            plan = self._greedy = SamplingPlan(temperature, top_k, top_p, min_p, seeds, filtered=False)
            plan.greedy = plan.at(plan.seeds, all_greedy=True)
        return plan

    def _penalised(
        self, sequences: Ordered[Sequence], index: list[int]
    ) -> tuple[tuple[NDArray[Any], ...], list[Entrant]]:
        """Arrays of `Penalised`, empty without penalties, and the sequences to be counted first."""
        if not index:
            return (), []
        rows, entrants = self._counts.rows_of([sequences[i] for i in index])
        params = [sequences[i].params for i in index]
        penalties = np.array(
            [
                [p.repetition_penalty for p in params],
                [p.presence_penalty for p in params],
                [p.frequency_penalty for p in params],
            ],
            dtype=np.float32,
        )
        return (np.array(index, dtype=np.int64), np.array(rows, dtype=np.int64), penalties), entrants

    def _penalise(self, logits: torch.Tensor, own: Penalised) -> torch.Tensor:
        if own.entrants:
            self._counts.enter(own.entrants, logits.shape[1])
            own.entrants.clear()
        changed = self._counts.penalise(logits.index_select(0, own.index), own.rows, own.penalties)
        return logits.index_copy(0, own.index, changed)


def _held_back(sequences: Ordered[Sequence], rows: list[int]) -> tuple[NDArray[Any], ...]:
    """Arrays of `HeldBack`, empty without any: output token `min_tokens` is the first that may end one."""
    held = [
        (row, token, len(sequences[row].prompt_ids) + sequences[row].params.min_tokens - 1)
        for row in rows
        if len(sequences[row].output_ids) < sequences[row].params.min_tokens
        for token in sequences[row].stop_ids
    ]
    return tuple(np.array(column, dtype=np.int64) for column in zip(*held, strict=True))


def _hold_back(logits: torch.Tensor, positions: torch.Tensor, held: HeldBack) -> torch.Tensor:
    """Mask the tokens that would end a sequence too early."""
    early = positions.index_select(0, held.index) < held.until
    values = logits[held.index, held.tokens].masked_fill(early, -torch.inf)
    return logits.index_put((held.index, held.tokens), values)


def _logprobs(logits: torch.Tensor, tokens: torch.Tensor, plan: SamplingPlan) -> SampledLogprobs:
    """Log-probabilities of the model itself, before any penalty, temperature or filter."""
    assert plan.logprobs_index is not None
    logits = logits.index_select(0, plan.logprobs_index)
    chosen = tokens.index_select(0, plan.logprobs_index).clamp_min(0).unsqueeze(1)  # -1: nothing was allowed
    own = torch.log_softmax(logits, dim=-1).gather(1, chosen).squeeze(1)
    values, ids = logprobs(logits, min(plan.most_logprobs, logits.shape[1]))
    return SampledLogprobs(own, values, ids, plan.with_logprobs)
