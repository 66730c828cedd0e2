from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def blis(command: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line in this process: `code, out, err = blis("run", "--tp", 2)`."""
    return command
