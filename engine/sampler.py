"""From logits to tokens: each request's own parameters, for a whole batch at a time."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.executor import Emitters
from engine.kernels.sampling import SamplingTensors, apply_penalties, logprobs, sample
from engine.sequence import Sequence, TokenLogprobs


@dataclass(slots=True)
class _Parameters:
    """Those of the sequences of a batch, on the device; they outlive a step."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    filtered: bool
    penalised: list[int]
    """Rows whose logits depend on the tokens so far."""
    held_back: list[int]
    """Rows that may not end before a number of tokens."""
    with_logprobs: list[int]
    greedy: SamplingTensors | None = None
    """What to sample with where all are greedy: it is the same at every position."""

    def at(self, positions: torch.Tensor, all_greedy: bool = False) -> SamplingTensors:
        """What to sample the tokens at these positions `[R]` with."""
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
    else in the batch.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._emitters: Emitters | None = None
        self._parameters: _Parameters | None = None

    def launch(
        self,
        logits: torch.Tensor,
        positions: torch.Tensor,
        emitters: Emitters,
        bitmask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Token ids `[R]` int64, on the device; -1 where the bitmask allows nothing.

        Args:
            logits: `[R, vocab]` float32.
            positions: int64, of the token each row was computed from; more than `[R]` may be given.
            emitters: the sequences of the rows.
            bitmask: `[R, ceil(vocab / 32)]` int32, tokens allowed; None = all.
        """
        sequences = emitters.sequences
        if self._parameters is None or emitters is not self._emitters:
            self._emitters, self._parameters = emitters, self._collect(sequences)
        own = self._parameters
        raw = logits
        if own.held_back:
            logits = self._hold_back(logits, own.held_back, sequences)
        if own.penalised:
            logits = self._penalise(logits, own.penalised, sequences)
        tensors = own.greedy or own.at(positions[: len(logits)] + 1)
        if bitmask is not None:
            tensors = replace(tensors, bitmask=bitmask)
        tokens = sample(logits, tensors)
        if own.with_logprobs:
            _note_logprobs(raw, tokens, own.with_logprobs, sequences)
        return tokens

    def _collect(self, sequences: Ordered[Sequence]) -> _Parameters:
        all_params = [sequence.params for sequence in sequences]

        def column(values: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).to(self._device, non_blocking=True)

        found = _Parameters(
            temperature=column([p.temperature for p in all_params], torch.float32),
            top_k=column([max(p.top_k, 0) for p in all_params], torch.int32),
            top_p=column([p.top_p for p in all_params], torch.float32),
            min_p=column([p.min_p for p in all_params], torch.float32),
            seeds=column([s.seed for s in sequences], torch.int64),
            filtered=any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in all_params),
            penalised=[i for i, p in enumerate(all_params) if p.penalised],
            held_back=[i for i, p in enumerate(all_params) if p.min_tokens > 0],
            with_logprobs=[i for i, p in enumerate(all_params) if p.logprobs is not None],
        )
        if all(p.temperature == 0 for p in all_params):
            found.greedy = found.at(torch.zeros_like(found.seeds), all_greedy=True)
        return found

    def _hold_back(self, logits: torch.Tensor, rows: list[int], sequences: Ordered[Sequence]) -> torch.Tensor:
        """Forbids the tokens that would end a sequence too early."""
        places = [
            (row, token)
            for row in rows
            if len(sequences[row].output_ids) < sequences[row].params.min_tokens
            for token in sequences[row].stop_ids
        ]
        if not places:
            return logits
        index = torch.tensor(places, dtype=torch.int64).to(self._device)
        logits = logits.clone()
        logits[index[:, 0], index[:, 1]] = -torch.inf
        return logits

    def _penalise(self, logits: torch.Tensor, rows: list[int], sequences: Ordered[Sequence]) -> torch.Tensor:
        vocabulary = logits.shape[1]
        prompts = np.zeros((len(rows), vocabulary), dtype=np.bool_)
        counts = np.zeros((len(rows), vocabulary), dtype=np.int32)
        for i, row in enumerate(rows):
            prompts[i, sequences[row].prompt_ids] = True
            counts[i] = np.bincount(np.array(sequences[row].output_ids, dtype=np.int64), minlength=vocabulary)
        penalties = torch.tensor(
            [
                (p.repetition_penalty, p.presence_penalty, p.frequency_penalty)
                for p in (sequences[row].params for row in rows)
            ],
            dtype=torch.float32,
        ).to(self._device)
        index = torch.tensor(rows, dtype=torch.int64).to(self._device)
        changed = apply_penalties(
            logits.index_select(0, index),
            torch.from_numpy(prompts).to(self._device),
            torch.from_numpy(counts).to(self._device),
            *penalties.unbind(dim=1),
        )
        return logits.index_copy(0, index, changed)


def _note_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, rows: list[int], sequences: Ordered[Sequence]
) -> None:
    """Stores log-probabilities of the model itself, before any penalty, temperature or filter."""
    index = torch.tensor(rows, dtype=torch.int64).to(logits.device)
    logits = logits.index_select(0, index)
    wanted = [sequences[row].params.logprobs or 0 for row in rows]
    chosen = tokens.index_select(0, index).clamp_min(0).unsqueeze(1)  # -1 where nothing was allowed
    own = torch.log_softmax(logits, dim=-1).gather(1, chosen).squeeze(1).tolist()
    values, ids = logprobs(logits, min(max(wanted), logits.shape[1]))
    for i, row in enumerate(rows):
        count = wanted[i]
        noted: TokenLogprobs = dict(zip(ids[i, :count].tolist(), values[i, :count].tolist(), strict=True))
        noted.setdefault(int(chosen[i]), own[i])
        sequences[row].logprobs.append(noted)
