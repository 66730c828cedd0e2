from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))  # for cluster_runs
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "extension"))  # for test_prefill_and_decode
