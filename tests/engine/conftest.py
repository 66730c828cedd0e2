"""Without torch there is nothing to test; with it one thread: tensors are tiny, and test processes many.

The virtual clock is found by the tests of every folder.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

if find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]
else:
    import torch

    torch.set_num_threads(1)
