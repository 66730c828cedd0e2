"""Ledgers of block diffusion: which rounds a request was in, what a prompt takes alone, what to try."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from blis_py.cluster.instances.diffusion import BlockDiffusion
from blis_py.cluster.instances.kinds import KindOfRequests
from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.core.diffusion_request import BatchOutcome, Commit, DenoiseBatch, DiffusionRequest
from blis_py.core.features import StepFeatures
from blis_py.core.request import Request
from blis_py.latency.step_run import StepRun
from blis_py.ledger.division import PrefillChunk
from blis_py.ledger.lines import LedgerLine
from blis_py.ledger.witness import MakeNoting, Notes, Noting, Watched


def noting(kind: KindOfRequests) -> MakeNoting:
    """Notes of an instance."""
    assert isinstance(kind, BlockDiffusion)
    return lambda scheduler, events, notes, watched: NotingRounds(scheduler, events, notes, watched, kind)


def chunk_alone(chunk: PrefillChunk, kind: KindOfRequests) -> StepFeatures:
    """The round of a piece of prompt and nothing else."""
    tokens, past, block = chunk.tokens, chunk.past, kind.block_tokens
    blocks = tokens // block
    return DiffusionFeatures(
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_pairs=tokens * past + block * block * blocks * (blocks + 1) // 2,
        prefill_kv_tokens=past,
        prefill_prompt_pairs=tokens * (past + tokens),
        max_context=past,
        prefill_blocks=blocks,
    )


def changes(kind: KindOfRequests) -> Iterator[tuple[str, Any]]:
    """Changes worth a run: a setting and its other value."""
    assert isinstance(kind, BlockDiffusion)
    yield "dllm.fdfo", not kind.config.fdfo


class NotingRounds(Noting):
    """Notes on a block-diffusion instance."""

    def __init__(
        self,
        scheduler: Any,
        events: Any,
        notes: Notes,
        watched: Sequence[Watched],
        diffusion: BlockDiffusion,
    ) -> None:
        super().__init__(scheduler, events, notes, watched)
        self._block, self._fdfo = diffusion.config.block_tokens, diffusion.config.fdfo
        self._rounds_of = diffusion.rounds
        self._batch: DenoiseBatch | None = None
        self._batch_start_ns, self._round = 0, 0

    def round(self, batch: DenoiseBatch, start_ns: int, end_ns: int) -> None:
        if batch is not self._batch:
            self._batch, self._batch_start_ns, self._round = batch, start_ns, 0
        self._round += 1
        planned_ns = start_ns if self._fdfo else self._batch_start_ns
        features = type(batch.features)(
            **{each.name: getattr(batch.features, each.name) for each in fields(batch.features)}
        )
        run = StepRun(1, end_ns)
        closed = bool(batch.preempted)
        self._note(start_ns, run, planned_ns, features, batch.prefills, batch.admitted, closed)
        self._events.round(batch, start_ns, end_ns)

    def batch(self, batch: DenoiseBatch, outcome: BatchOutcome) -> None:
        self._batch = None
        self._events.batch(batch, outcome)

    def commits(self, commits: Sequence[Commit], now_ns: int) -> None:
        self._events.commits(commits, now_ns)

    def _decoding(self, request: Request) -> LedgerLine:
        assert self._batch is not None
        assert isinstance(request, DiffusionRequest)
        if request not in self._batch.denoise:
            return LedgerLine.OTHERS_PREFILL  # prompts have rounds of their own
        rounds = self._rounds_of[request.row][len(request.rounds_per_block)]
        return LedgerLine.RIDING if not self._fdfo and self._round > rounds else LedgerLine.DECODE

    def _prompt_tokens(self, prompt_tokens: int) -> int:
        return prompt_tokens // self._block * self._block or self._block

    def _least_tokens(self) -> int:
        return self._block

    def _served_before(self, tokens: int) -> int:
        assert self._batch is not None
        inside = sum(request not in self._batch.admitted for request in self._batch.denoise)
        return tokens + (self._block * inside if self._fdfo else 0)
