from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # nothing of the inner loop before it is decided whether it runs in native code
    from blis_py.planning.job import Job


@pytest.fixture
def small() -> dict[str, Any]:
    """Settings of a workload that takes no time."""
    return {"model": "llama-3.1-8b", "num_requests": 120, "rate": 20, "output_tokens": 60}


@pytest.fixture
def jobs(small: dict[str, Any]) -> list[Job]:
    """Eight that run, and in the middle one that cannot."""
    from blis_py.api import configure
    from blis_py.planning.job import Job

    rates = [Job(configure(**small | {"rate": 5 * rate})) for rate in range(1, 9)]
    return [*rates[:4], Job(configure(**small, tp=3)), *rates[4:]]
