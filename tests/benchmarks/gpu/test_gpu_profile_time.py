"""How long a profile of an 8B model takes, by the least that its forwards need and a visit's host time."""

from __future__ import annotations

import pytest
from profile_host import BLOCK_SIZE, BLOCKS, SEQS, TOKENS, floor_s

from engine.graphs import default_buckets
from engine.profile.plan import plan
from engine.profile.shapes import GRIDS, ShapeLimits

LIMITS = ShapeLimits(SEQS, TOKENS, 32768, BLOCKS, BLOCK_SIZE, buckets=default_buckets(SEQS), shares=True)
START_S, VISIT_S = 30.0, 0.015
"""To load the model and capture graphs; of the host for a visit."""
SLOWER = 1.6
"""Time of a forward over the least it needs."""


@pytest.mark.long
def test_the_first_usable_fit_comes_within_100_s_and_four_rounds_within_170_s() -> None:
    shapes = plan(LIMITS, GRIDS["full"])
    round_s = sum(SLOWER * floor_s(shape) + VISIT_S for shape in shapes)
    assert len(shapes) < 519 / 2, "half of a plan with every captured size and one above it"
    assert START_S + 2 * round_s < 100, "every shape is visited once to warm up"
    assert START_S + 5 * round_s < 170
