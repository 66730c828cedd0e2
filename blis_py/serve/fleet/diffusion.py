"""Block diffusion in a live cluster: rounds drawn at arrival, and tokens emitted by blocks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from blis_py.requests.streams import stream
from blis_py.serve.fleet.live import TokenTap
from blis_py.traces.diffusion_rounds import NAME, write_rounds, write_workload
from blis_py.workload.diffusion import MeasuredSteps, block_counts, draw
from blis_py.workload.diffusion_steps import RecordedSteps, Sequences


class LiveRounds(Sequence[list[int]]):
    """Forward passes of each block of each request, by row; recorded ones are drawn request by request."""

    def __init__(self, measured: MeasuredSteps, block_tokens: int, seed: int) -> None:
        steps, self._measured = measured.steps, measured
        self._steps = Sequences(tuple(steps.rounds.values())) if isinstance(steps, RecordedSteps) else steps
        self.block_tokens = block_tokens
        self._random = stream(seed, "served", "denoise steps")
        self.rows: list[list[int]] = []

    def add(self, prompt_tokens: int, output_tokens: int) -> None:
        """Draw the rounds of the next row."""
        prompt, output, limit = np.array([[prompt_tokens], [output_tokens], [0]])
        counts = block_counts(prompt, output, limit, self.block_tokens).tolist()
        self.rows += draw(self._steps, self._random, counts, self._measured.commit_rounds)

    def write(self, folder: Path) -> None:
        """Write the rounds beside the trace of a run, for its replay: `block_rounds.csv` and `dllm.yaml`."""
        write_rounds(folder / NAME, dict(enumerate(self.rows)))
        write_workload(
            folder,
            block_tokens=self.block_tokens,
            algorithm=self._measured.algorithm or "served",
            parameters=self._measured.parameters or {},
        )

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, row: int) -> list[int]: ...
    @overload
    def __getitem__(self, row: slice) -> list[list[int]]: ...
    def __getitem__(self, row: Any) -> Any:
        return self.rows[row]


class BlockTap(TokenTap):
    """A `RoundEvents` that reports the final blocks of one instance, and forwards all events."""

    def round(self, batch: Any, start_ns: int, end_ns: int) -> None:
        features = batch.features
        self._live.stepped(features.prefill_tokens + features.decode_seqs)
        self._events.round(batch, start_ns, end_ns)

    def batch(self, batch: Any, outcome: Any) -> None:
        self._events.batch(batch, outcome)

    def commits(self, commits: Any, now_ns: int) -> None:
        for commit in commits:
            if commit.emitted_tokens:
                self._live.emitted(commit.request, commit.emitted_tokens, now_ns, len(commits))
        self._events.commits(commits, now_ns)
