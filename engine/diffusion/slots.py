"""Blocks in progress, one per request slot, on the device.

An unfinished block stays in its slot from batch to batch: what a request carries in `dllm_incomplete_ids`
and `dllm_algo_state` are views of its row. Only when it loses the slot are they copied, and loaded again
into the next one.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blis_py.core.diffusion_request import NO_SLOT, DiffusionRequest
from engine.diffusion.blocks import Algorithm, Blocks, State, Tensor


class BlockSlots:
    """Token ids, prompt positions and algorithm state of every slot."""

    def __init__(
        self, num_slots: int, block_tokens: int, mask_id: int, algorithm: Algorithm, device: torch.device
    ) -> None:
        self.block_tokens, self.mask_id, self.algorithm, self.device = (
            block_tokens,
            mask_id,
            algorithm,
            device,
        )
        shape = (num_slots, block_tokens)
        self._ids = torch.full(shape, mask_id, dtype=torch.int64, device=device)
        self._answer = torch.ones(shape, dtype=torch.bool, device=device)
        self._state = algorithm.init_step_state(Blocks(self._ids, self._answer, mask_id))
        self._resident: dict[DiffusionRequest, int] = {}
        """Slot in which the unfinished block of a request lies."""
        self.logit_rows: NDArray[np.int64] = np.zeros(num_slots, dtype=np.int64)
        """Rows of logits that the next round of each block needs."""

    def beginning(
        self, requests: Ordered[DiffusionRequest], prompt_tails: Ordered[Ordered[int]]
    ) -> tuple[NDArray[Any], ...]:
        """Inputs of `begin` on the device: the slots of a batch, and the initial content of its new blocks.

        Args:
            prompt_tails: for each request the prompt tokens that its block begins with.

        Returns:
            `[B]` slots; `[F]` slots of new blocks, `[F, L]` their ids and `[F, L]` their answer positions.
        """
        fresh = [i for i, request in enumerate(requests) if request.dllm_incomplete_ids is None]
        slots = np.array([request.slot for request in requests], dtype=np.int64)
        ids = np.full((len(fresh), self.block_tokens), self.mask_id, dtype=np.int64)
        answer = np.ones(ids.shape, dtype=bool)
        for row, tail in enumerate(prompt_tails[i] for i in fresh):
            ids[row, : len(tail)] = tail
            answer[row, : len(tail)] = False
        self.logit_rows[slots[fresh]] = answer.sum(axis=1)
        return slots, slots[fresh], ids, answer

    def begin(
        self, requests: Ordered[DiffusionRequest], slots: Tensor, fresh: Tensor, ids: Tensor, answer: Tensor
    ) -> tuple[Blocks, State]:
        """The blocks of a batch, gathered, and the algorithm's state; arguments are those of `beginning`."""
        for request in requests:
            if request.dllm_incomplete_ids is not None and self._resident.get(request) != request.slot:
                self._load(request)
        if len(fresh):
            self._fill(fresh, Blocks(ids, answer, self.mask_id))
        blocks = Blocks(self._ids[slots], self._answer[slots], self.mask_id)
        return blocks, {name: rows[slots] for name, rows in self._state.items()}

    def end(
        self,
        requests: Ordered[DiffusionRequest],
        slots: Tensor,
        blocks: Blocks,
        state: State,
        done: Ordered[bool],
        in_place: bool,
    ) -> None:
        """Write a batch back to its slots `[B]`, and the state of unfinished requests to the requests."""
        self._ids.index_copy_(0, slots, blocks.ids)
        for name, rows in state.items():
            self._state[name].index_copy_(0, slots, rows)
        for request, over in zip(requests, done, strict=True):
            if over:
                self._resident.pop(request, None)
                continue
            self._resident[request] = request.slot
            request.dllm_incomplete_ids = self._ids[request.slot]
            request.dllm_algo_state = {name: rows[request.slot] for name, rows in self._state.items()}
            if not in_place:
                self.evict(request)

    def evict(self, request: DiffusionRequest) -> None:
        """Release the slot of a request, with its block."""
        slot = self._resident.pop(request, NO_SLOT)
        if slot != NO_SLOT:
            request.dllm_incomplete_ids = (
                self._ids[slot].clone(),
                self._answer[slot].clone(),
                int(self.logit_rows[slot]),
            )
            request.dllm_algo_state = {name: rows[slot].clone() for name, rows in self._state.items()}

    def forget(self, request: DiffusionRequest) -> None:
        """The request is gone."""
        self._resident.pop(request, None)

    @property
    def resident(self) -> int:
        """Unfinished blocks that lie in a slot."""
        return len(self._resident)

    def _fill(self, slots: Tensor, blocks: Blocks) -> None:
        """New blocks: the prompt's tail, then masks."""
        self._ids.index_copy_(0, slots, blocks.ids)
        self._answer.index_copy_(0, slots, blocks.answer)
        for name, rows in self.algorithm.init_step_state(blocks).items():
            self._state[name].index_copy_(0, slots, rows)

    def _load(self, request: DiffusionRequest) -> None:
        ids, answer, self.logit_rows[request.slot] = request.dllm_incomplete_ids
        self._ids[request.slot], self._answer[request.slot] = ids, answer
        for name, row in request.dllm_algo_state.items():
            self._state[name][request.slot] = row
