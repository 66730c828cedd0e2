from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("torch") is None:
    collect_ignore_glob = ["*.py"]
else:
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def experts(tmp_path: Path) -> str:
    """A model of two sparse layers with eight experts each, two of them for every token."""
    from profile_cases import small_copy

    folder = tmp_path / "moe"
    folder.mkdir()
    return small_copy(folder, "qwen3-30b-a3b", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
