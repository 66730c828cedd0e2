"""Some of the random fleets of `make soak`."""

from __future__ import annotations

import pytest
from random_fleets import violations


@pytest.mark.parametrize("seed", range(24))
def test_a_random_fleet_keeps_every_invariant(seed: int) -> None:
    assert list(violations(seed)) == []
