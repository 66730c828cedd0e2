"""The advice on routers is that of a bundled hour."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import blis_py as blis

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "routing.md"


def figures(shared_data: Path, policy: str) -> str:
    """TTFT mean and p99, p99 TPOT and p99 E2E of the code hour on three instances, as the guide has them."""
    trace = str(shared_data / "azure_2023" / "azure2023_code.csv")
    run = blis.run(trace=trace, model="llama-3.1-8b", num_instances=3, routing_policy=policy)
    of: dict[str, Any] = run.summary["cluster"]
    ttft, tpot, e2e = of["ttft_ms"], of["tpot_ms"], of["e2e_ms"]
    return f"{ttft['mean']:.0f}, {ttft['p99']:.0f} ms | {tpot['p99']:.1f} ms | {e2e['p99'] / 1e3:.2f} s"


@pytest.mark.slow
def test_round_robin_has_the_better_first_tokens_and_the_least_loaded_the_better_decodes(
    shared_data: Path,
) -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    for policy in ("round-robin", "least-loaded"):
        assert f"| `{policy}` | {figures(shared_data, policy)} |" in guide
