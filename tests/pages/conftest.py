from __future__ import annotations

from pathlib import Path

import pytest

import blis_py as blis

_SETTINGS = {"workload": "mixed-slo", "num_requests": 200, "model": "qwen3-14b", "num_instances": 2}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two small runs of the same requests."""
    folder = tmp_path_factory.mktemp("pages")
    slo = ["critical.ttft.p99=5s", "tpot.p90=1us"]
    for scheduler in ("fcfs", "sjf"):
        result = blis.run(**_SETTINGS, slo=slo, scheduler=scheduler)
        result.save(folder / scheduler, plots=False)
    return folder
