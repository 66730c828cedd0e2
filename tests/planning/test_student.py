"""Quantiles of Student's distribution, beside SciPy's."""

from __future__ import annotations

import pytest
from scipy.special import stdtrit

from blis_py.planning.student import two_sided


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 299])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_a_share_lies_within_the_quantile(confidence: float, freedom: int) -> None:
    assert two_sided(confidence, freedom) == pytest.approx(stdtrit(freedom, (1 + confidence) / 2), rel=1e-12)
