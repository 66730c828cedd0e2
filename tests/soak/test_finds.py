"""Configurations in which a soak found something wrong."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("fleet", 730566)],  # a preempted request times out while its KV is loaded from the tier
)
def test_ledgers_of_what_a_soak_found_add_up(monkeypatch: pytest.MonkeyPatch, kind: str, seed: int) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "ledger"))
    from configurations import KINDS
    from ledger_runs import all_ledgers, check_sums

    configuration = KINDS[kind](Random(seed))
    record, ledgers = all_ledgers(configuration.record, configuration.latency, configuration.diffusion)
    check_sums(record, ledgers)
