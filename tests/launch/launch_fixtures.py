"""The launch files beside this one, and what they must resolve to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_py.files.yaml_files import load_mapping
from blis_py.launch.reader import Launch, read_launch

FOLDER = Path(__file__).parent / "fixtures"
EXPECTED: dict[str, dict[str, Any]] = load_mapping(FOLDER / "expected.yaml")


def launch_of(name: str) -> Launch:
    """The launch file, read with the variables that it needs."""
    expected = EXPECTED[name]
    return read_launch([str(FOLDER / name)], expected.get("with", {}), model=expected.get("model", ""))
