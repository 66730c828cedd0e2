from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def blis(command: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line in this process: `code, out, err = blis("run", "--tp", 2)`."""
    return command


@pytest.fixture
def small() -> tuple[str, ...]:
    """Flags of a workload that takes no time."""
    lengths = ("--output-tokens", "40", "--output-tokens-stdev", "9")
    return ("--model", "qwen3-14b", "--num-requests", "12", "--rate", "4", *lengths)
