from __future__ import annotations

from collections.abc import Callable

import pytest

from blis_py.cli import main


@pytest.fixture
def blis(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs one command line in this process: `code, out, err = blis("run", "--tp", 2)`."""

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def small() -> tuple[str, ...]:
    """Flags of a workload that takes no time."""
    lengths = ("--output-tokens", "40", "--output-tokens-stdev", "9")
    return ("--model", "qwen3-14b", "--num-requests", "12", "--rate", "4", *lengths)
