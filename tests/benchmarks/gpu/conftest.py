from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]

# The scripts stand beside each other, not in a package. Others have some of these names, too: they go first.
sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks" / "gpu"))
