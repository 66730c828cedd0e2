"""The engine under random settings and failures: every output is that of its request served alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OUTPUTS = 1500
"""A minute; `make soak-engine` takes 3,000."""


@pytest.mark.slow
@pytest.mark.long
def test_outputs_of_all_loops_under_random_settings_and_failures_are_those_of_requests_alone() -> None:
    command = [sys.executable, str(Path(__file__).with_name("engine_outputs.py")), "--outputs", str(OUTPUTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    compared = int(done.stdout.split()[0].replace(",", ""))
    assert compared >= OUTPUTS
