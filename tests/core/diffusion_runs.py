"""Drives a diffusion scheduler by the number of rounds each block takes, one round at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import BatchOutcome, Commit, DenoiseBatch, DiffusionRequest
from blis_py.core.token_keys import token_keys

BLOCK = 32
FIELDS = set(DiffusionConfig.__dataclass_fields__)


def scheduler(**settings: Any) -> DiffusionScheduler:
    modes = {name: settings.pop(name) for name in list(settings) if name in FIELDS}
    defaults = {"num_kv_blocks": 64, "max_model_len": 1024, "block_size": BLOCK, "max_num_seqs": 4}
    return DiffusionScheduler(SchedulerConfig(**{**defaults, **settings}), DiffusionConfig(**modes))


def request(name: str, prompt: int = 0, output: int | None = BLOCK, **settings: Any) -> DiffusionRequest:
    return DiffusionRequest(name, settings.pop("arrival_ns", 0), prompt, output, **settings)


class Driver:
    """Stands in for a model: `rounds[name]` lists the forwards of each block; the last repeats."""

    def __init__(self, scheduler: DiffusionScheduler, rounds: Mapping[str, Sequence[int]]) -> None:
        self.scheduler, self.rounds = scheduler, rounds
        self.round = 0
        self.left_at: dict[str, int] = {}
        self.entered_at: dict[str, int] = {}
        self.history: list[DenoiseBatch] = []

    def begin(self) -> DenoiseBatch | None:
        batch = self.scheduler.schedule(self.round)
        if batch is not None:
            self.history.append(batch)
            for request in batch.admitted:
                self.entered_at.setdefault(request.id, self.round)
        return batch

    def end(self, batch: DenoiseBatch) -> list[Commit]:
        left = [self._left(request) for request in batch.denoise]
        if self.scheduler.diffusion.fdfo:
            for request, own in zip(batch.denoise, left, strict=True):
                request.dllm_incomplete_ids, request.dllm_algo_state = own - 1, request.id
            outcome = BatchOutcome([BLOCK * (own == 1) for own in left])
        else:
            outcome = BatchOutcome([BLOCK] * len(left), max(left, default=1), left)
        self.round += outcome.rounds
        commits = self.scheduler.finish(batch, outcome)
        for commit in commits:
            if commit.finished:
                self.left_at[commit.request.id] = self.round
        return commits

    def step(self) -> list[Commit] | None:
        batch = self.begin()
        return None if batch is None else self.end(batch)

    def drain(self) -> None:
        while self.step() is not None:
            self.scheduler.check()
        assert self.scheduler.free_slots == self.scheduler.config.max_num_seqs
        assert self.scheduler.kv.pool.num_free == self.scheduler.kv.pool.total

    def _left(self, request: DiffusionRequest) -> int:
        if request.dllm_incomplete_ids is not None:
            assert request.dllm_algo_state == request.id, "state crossed requests"
            return int(request.dllm_incomplete_ids)
        assert request.dllm_algo_state is None
        blocks = self.rounds.get(request.id, (2,))
        return blocks[min(len(request.rounds_per_block), len(blocks) - 1)]


def keyed(name: str, ids: list[int], page: int = BLOCK, **settings: Any) -> Any:
    return request(name, len(ids), block_keys=token_keys(ids, page), **settings)


def scheduled(core: Any) -> Any:
    batch = core.schedule(0)
    assert batch is not None
    return batch
