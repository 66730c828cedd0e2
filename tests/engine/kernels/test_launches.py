"""What a step launches: a captured step is one graph, with prompts, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_captured_step_with_prompts_launches_nothing_for_a_layer() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = str(Path(__file__).with_name("launches.py"))
    done = subprocess.run(
        [sys.executable, script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["prompt"] == {"layer": 10, "step": 12}
    assert found["prompt, captured"] == {"layer": 0, "step": 1}
