from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The same modules are tested whether or not `make run` has compiled them; test_native.py is about those.
os.environ["BLIS_INTERPRETED"] = "1"
# What is kept of runs is kept for one test session, whoever else has run them before.
CACHE = os.environ["BLIS_CACHE"] = tempfile.mkdtemp(prefix="blis-cache-")

# Every run tries the same examples; `--hypothesis-profile=search` looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", settings.get_profile("search"), derandomize=True, print_blob=True)
settings.load_profile("default")


def pytest_unconfigure() -> None:
    shutil.rmtree(CACHE, ignore_errors=True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real traces and measurements that live beside the checkout; tests that need them skip without."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("the shared data folder is not beside this checkout")
    return folder
