from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def experts(tmp_path: Path) -> str:
    """A model of two sparse layers with eight experts each, two of them for every token."""
    from profile_cases import small_copy

    folder = tmp_path / "moe"
    folder.mkdir()
    return small_copy(folder, "qwen3-30b-a3b", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32)
