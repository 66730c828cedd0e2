"""Random tables of requests, in which each optional column is there or not."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

from blis_py.requests.table import Labels, RequestTable

TEXTS = (("a", 5),), (("a", 5), ("b", 9)), (("b", 3),), ()


def drawn(rng: Random, rows: int) -> RequestTable:
    """Each optional column is there in every second table."""

    def ints(low: int, high: int) -> Any:
        return np.array([rng.randint(low, high) for _ in range(rows)], dtype=np.int64)

    def maybe(value: Any) -> Any:
        return value if rng.random() < 0.5 else None

    def labels(*names: str) -> Labels | None:
        found: Labels | None = maybe(Labels.of([rng.choice(names) for _ in range(rows)]))
        return found

    def flags() -> Any:
        return maybe(np.array([rng.random() < 0.5 for _ in range(rows)]))

    sessions = maybe(ints(-1, 2))
    names = None if sessions is None else maybe([f"talk {n}" for n in range(rng.choice((3, 5)))])
    table = RequestTable.build(
        np.sort(ints(0, rng.choice((0, 12, 500)))) * (np.arange(rows) > 0),  # recordings begin at 0
        ints(1, 90),
        ints(1, 9),
        max_tokens=ints(0, 9),
        deadline_ns=ints(-1, 1000),
        slo_class=labels("critical", "batch", ""),
        tenant=labels("north"),
        client=labels("c1", "c2"),
        model=labels("m", ""),
        prefix_group=labels("g", ""),
        prefix_tokens=ints(0, 5),
        content=ints(-1, len(TEXTS) - 1),
        contents=TEXTS,
        streaming=flags(),
        slo_target_ns=ints(0, 3),
        request_id=maybe([f"id {row}" for row in range(rows)]),
        session=sessions,
        session_names=names,
        round_index=maybe(ints(0, 3)),
        modality_tokens=maybe(ints(0, 9 * 4).repeat(4).reshape(rows, 4) % (1, 2, 3, 7)),
        network_ns=maybe(ints(0, 99).repeat(2).reshape(rows, 2) * (1.0, 0.5)),
        think_ns=maybe(ints(-1, 50)),
        constrained=flags(),
        extra_key=labels("lora", ""),
    )
    object.__setattr__(table, "ends_by_eos", flags())
    return table
