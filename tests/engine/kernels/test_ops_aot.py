"""The Triton kernels of the ops, compiled for sm_90 without a GPU, keep their promises."""

from __future__ import annotations

import os
import subprocess
import sys

KERNELS = ("rms_norm ", "swiglu ", "qk_norm_rope_store ", "moe gate_up ", "moe down ", "moe combine")


def test_every_case_compiles_for_sm_90_without_spills_and_with_its_instructions() -> None:
    # A process of its own: in this one Triton may have been imported for its interpreter.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "engine.kernels.aot", *KERNELS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for kernel in KERNELS:
        assert any(line.startswith(kernel) for line in done.stdout.splitlines()), kernel
