"""Log of a driver of diffusion blocks, with the same rows in simulator and engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from blis_py.core.diffusion_request import Batch, Commit, DiffusionRequest, Outcome


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A batch: the round at which it began (from 0), its contents, and its length."""

    first_round: int
    rounds: int
    denoise: tuple[str, ...]
    """Names of the requests whose blocks took part."""
    prefills: tuple[tuple[str, int], ...]
    """Names of the requests that computed prompt, with the tokens."""
    committed: tuple[str, ...]


@dataclass(slots=True)
class DiffusionLog:
    """Batches, and the commit times of each request's blocks."""

    rows: list[BatchRow] = field(default_factory=list)
    commit_ns: dict[DiffusionRequest, list[int]] = field(default_factory=dict)
    refusals: list[DiffusionRequest] = field(default_factory=list)
    _round: int = 0

    def batch(self, batch: Batch, outcome: Outcome) -> None:
        """Record a batch that ended; call before the scheduler is updated."""
        lengths = zip(batch.denoise, outcome.accept_lengths, strict=True)
        row = BatchRow(
            self._round,
            outcome.rounds,
            tuple(request.id for request in batch.denoise),
            tuple((request.id, tokens) for request, tokens in batch.prefills),
            tuple(request.id for request, accepted in lengths if accepted),
        )
        self._round += outcome.rounds
        self.rows.append(row)

    def commits(self, commits: Iterable[Commit], now_ns: int) -> None:
        """Record blocks that became final at this time."""
        for commit in commits:
            self.commit_ns.setdefault(commit.request, []).append(now_ns)

    def refused(self, request: DiffusionRequest) -> None:
        """Record a request that can never be served."""
        self.refusals.append(request)
