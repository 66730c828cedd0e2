"""Sending, first and last token time of each request of a run: measured or simulated."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from blis_py.requests.table import Ints, Labels
from blis_py.traces.itl import Ragged

if TYPE_CHECKING:
    from blis_py.metrics.record import RunRecord

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class TokenTimes:
    """One row per completed request, sorted by id."""

    source: str
    request_id: Ints
    slo_class: Labels
    output_tokens: Ints
    sent_s: Seconds
    """NaN if unknown."""
    ttft_s: Seconds
    e2e_s: Seconds
    incomplete: int
    """Requests that ended otherwise, or without a recorded token."""
    gaps: Ragged | None = None
    """Times between the tokens of each request, in s; `None` = only first and last are known."""
    prompt_tokens: Ints | None = None
    """`None` = not known."""
    same_prompt: Ints | None = None
    """Requests with the same number have the same prompt; `None` = not known."""
    instance: Labels | None = None
    """The instance that served each request; `None` = not known."""
    concurrency: int | None = None
    """For a closed loop: maximum number of requests in flight; `None` = unknown."""
    read_as: str = ""
    """The detected format of the file."""

    @property
    def has_send_times(self) -> bool:
        """Whether sending times are known."""
        return not bool(np.isnan(self.sent_s).any())

    @property
    def tpot_s(self) -> Seconds:
        """Mean time per token after the first; NaN for a single token."""
        gaps = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        means: Seconds = (self.e2e_s - self.ttft_s) / gaps
        return means

    def take(self, rows: NDArray[np.intp]) -> TokenTimes:
        return replace(
            self,
            request_id=self.request_id[rows],
            slo_class=self.slo_class.take(rows),
            output_tokens=self.output_tokens[rows],
            sent_s=self.sent_s[rows],
            ttft_s=self.ttft_s[rows],
            e2e_s=self.e2e_s[rows],
            gaps=self.gaps.take(rows) if self.gaps is not None else None,
            prompt_tokens=self.prompt_tokens[rows] if self.prompt_tokens is not None else None,
            same_prompt=self.same_prompt[rows] if self.same_prompt is not None else None,
            instance=self.instance.take(rows) if self.instance is not None else None,
        )


def token_times(record: RunRecord, source: str) -> TokenTimes:
    """Token times of a run in memory, unrounded and with all gaps. Requests are identified by row."""
    from blis_py.metrics.itl import TokenGaps
    from blis_py.metrics.latencies import completed_mask

    table = record.table
    rows = np.flatnonzero(completed_mask(record))
    gap_ns, counts = TokenGaps(record).of_each(rows)
    sent_ns = table.arrival_ns[rows]
    return TokenTimes(
        source=source,
        request_id=rows.astype(np.int64),
        slo_class=table.slo_class.take(rows),
        output_tokens=record.emitted_tokens[rows],
        sent_s=sent_ns / 1e9,
        ttft_s=(record.first_token_ns[rows] - sent_ns) / 1e9,
        e2e_s=(record.last_token_ns[rows] - sent_ns) / 1e9,
        incomplete=len(table) - len(rows),
        gaps=Ragged(gap_ns / 1e9, counts),
        prompt_tokens=table.prompt_tokens[rows],
    )
