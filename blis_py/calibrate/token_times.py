"""When each request of a run was sent, got its first token and its last: measured or simulated."""

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
    """One row per request that completed, sorted by id."""

    source: str
    request_id: Ints
    slo_class: Labels
    output_tokens: Ints
    sent_s: Seconds
    """NaN where it is not told."""
    ttft_s: Seconds
    e2e_s: Seconds
    incomplete: int
    """Requests that ended otherwise, or without a recorded token."""
    gaps: Ragged | None = None
    """Times between the tokens of each request, in s; `None` = only first and last are known."""
    prompt_tokens: Ints | None = None
    """`None` = not known."""
    same_prompt: Ints | None = None
    """Requests of the same number sent the same prompt; `None` = not known."""
    concurrency: int | None = None
    """Of a closed loop: requests in flight at once, at most; `None` = none is told."""
    read_as: str = ""
    """What the file was taken for."""

    @property
    def tells_sending(self) -> bool:
        """Whether it is known when requests were sent."""
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
        )


def token_times(record: RunRecord, source: str) -> TokenTimes:
    """Of a run that has just ended, without rounding and with all gaps. Requests are known by their rows."""
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
