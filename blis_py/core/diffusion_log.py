"""What a driver of diffusion blocks notes while it runs: the same rows in the simulator and in the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from blis_py.core.diffusion_request import Batch, Commit, DiffusionRequest, Outcome


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch: its round when it began (from 0), what ran in it, and for how long."""

    first_round: int
    rounds: int
    denoise: tuple[str, ...]
    """Names of the requests whose blocks took part."""
    prefills: tuple[tuple[str, int], ...]
    """Names of the requests that computed prompt, with the tokens."""
    committed: tuple[str, ...]


@dataclass(slots=True)
class DiffusionLog:
    """Batches, and when the blocks of each request became final."""

    rows: list[BatchRow] = field(default_factory=list)
    commit_ns: dict[DiffusionRequest, list[int]] = field(default_factory=dict)
    refusals: list[DiffusionRequest] = field(default_factory=list)
    _round: int = 0

    def batch(self, batch: Batch, outcome: Outcome) -> None:
        """A batch is over; to be called before the scheduler is told."""
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
        """Blocks that became final at this time."""
        for commit in commits:
            self.commit_ns.setdefault(commit.request, []).append(now_ns)

    def refused(self, request: DiffusionRequest) -> None:
        """A request that can never be served."""
        self.refusals.append(request)
