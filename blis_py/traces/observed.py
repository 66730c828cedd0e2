"""Client-side measurements of a workload, recorded live and saved as a folder.

The client records when each request was sent, when tokens came, and how it ended; what the server is does
not matter here. `trace.yaml` and `trace.csv` hold the requests as a TraceV2 with measured times, `itl.csv`
the time of every token (or block of tokens), `run.yaml` what ran.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.files.yaml_files import dump_yaml
from blis_py.outputs.staging import write_text
from blis_py.requests.table import Ints, RequestTable
from blis_py.traces.itl import NAME as ITL_NAME
from blis_py.traces.itl import write_itl
from blis_py.traces.tracev2_write import End, MeasuredColumns, request_numbers, write

RUN_NAME = "run.yaml"
UNSENT: End = ("error", "not sent", "")
UNANSWERED: End = ("error", "no end seen", "")


@dataclass(slots=True)
class ObservedRequest:
    """One request; times in ns on the client's clock."""

    sent_ns: int = -1
    token_ns: list[int] = field(default_factory=list)
    """Times at which a token came, or all tokens of a block at once."""
    ended_ns: int = -1
    end: End = UNSENT


class ObservedColumns:
    """Recorder of a table's requests, identified by their rows."""

    def __init__(self, table: RequestTable) -> None:
        self.table = table
        self.requests = [ObservedRequest() for _ in range(len(table))]

    def sent(self, row: int, time_ns: int) -> None:
        request = self.requests[row]
        request.sent_ns, request.end = time_ns, UNANSWERED

    def token(self, row: int, time_ns: int) -> None:
        """Record a token, or a block of tokens."""
        self.requests[row].token_ns.append(time_ns)

    def ended(self, row: int, time_ns: int, end: End) -> None:
        request = self.requests[row]
        request.ended_ns, request.end = time_ns, end

    def counts(self) -> dict[str, int]:
        """Requests by outcome, each counted once."""
        by_end = Counter(
            status if status != "error" else message.partition(":")[0]
            for status, message, _ in (request.end for request in self.requests)
        )
        return {"injected": len(self.requests), **dict(sorted(by_end.items()))}

    def sent_table(self) -> RequestTable:
        """The requests at their actual sending times, with unchanged patience."""
        table = self.table
        sent_ns = np.array([request.sent_ns for request in self.requests], dtype=np.int64)
        arrival_ns = np.where(sent_ns < 0, table.arrival_ns, sent_ns)
        deadline_ns = np.where(table.deadline_ns < 0, -1, arrival_ns + table.deadline_ns - table.arrival_ns)
        return replace(table, arrival_ns=arrival_ns, deadline_ns=deadline_ns)

    def write(
        self,
        folder: Path,
        run: Mapping[str, Any],
        *,
        seed: int | None = None,
        workload: str | None = None,
        server: Mapping[str, Any] | None = None,
        header: Mapping[str, Any] | None = None,
        server_input_tokens: Ints | None = None,
    ) -> None:
        """Write the four files into an existing folder.

        Args:
            run: the content of `run.yaml`.
            seed, workload, server, header: provenance in the header of the trace.
            server_input_tokens: prompt tokens as the server counts them; 0 = unknown.

        Raises:
            InputError: the requests cannot be expressed as a trace; see `blis_py.traces.tracev2_write`.
        """
        tokens = [request.token_ns for request in self.requests]
        counts = np.array([len(times) for times in tokens], dtype=np.int64)
        measured = MeasuredColumns(
            first_token_ns=np.array([times[0] if times else -1 for times in tokens], dtype=np.int64),
            last_token_ns=np.array([times[-1] if times else -1 for times in tokens], dtype=np.int64),
            chunks=counts,
            ends=[request.end for request in self.requests],
            server_input_tokens=server_input_tokens,
        )
        table = self.sent_table()
        write(
            table,
            folder / "trace.yaml",
            folder / "trace.csv",
            record=measured,
            mode="real",
            seed=seed,
            workload=workload,
            server=server,
            header=header,
        )
        times_ns = np.array([time_ns for times in tokens for time_ns in times], dtype=np.int64)
        write_itl(folder / ITL_NAME, request_numbers(table), counts, times_ns)
        plain = json.loads(json.dumps(run))  # without tuples and text types unknown to YAML
        write_text(folder / RUN_NAME, dump_yaml(plain))
