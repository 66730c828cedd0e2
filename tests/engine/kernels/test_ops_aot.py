"""Every case of every Triton kernel, compiled for sm_90 without a GPU, keeps its promises."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# In parts, so that several processes can share them.
PARTS = (
    ("decode d", "decode merge", "denoise "),
    ("prefill ",),
    ("prepare ", "rms_norm ", "swiglu ", "qk_norm_rope_store ", "moe gate_up ", "moe down ", "moe combine"),
)


def aot(*arguments: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: in this one Triton may have been imported for its interpreter.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("kernels", PARTS, ids=lambda kernels: kernels[0])
def test_every_case_compiles_for_sm_90_without_spills_and_with_its_instructions(
    kernels: tuple[str, ...],
) -> None:
    done = aot("-m", "engine.kernels.aot", *kernels)
    assert done.returncode == 0, done.stderr
    for kernel in kernels:
        assert any(line.startswith(kernel) for line in done.stdout.splitlines()), kernel


def test_no_case_is_left_out() -> None:
    done = aot("-c", "from engine.kernels import aot; print(*(c.name for c in aot.all_cases()), sep='\\n')")
    assert done.returncode == 0, done.stderr
    names = tuple(name for part in PARTS for name in part)
    assert [name for name in done.stdout.splitlines() if not name.startswith(names)] == []
