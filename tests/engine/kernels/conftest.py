from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from quick_interpreter import quicken

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel module is imported


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("TRITON_INTERPRET") == "1":
            quicken(patch)
        yield
