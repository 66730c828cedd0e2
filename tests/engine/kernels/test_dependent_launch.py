"""Kernels launched before the one before them ends: they wait before they touch memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from blis_py.errors import InputError
from engine.config import EngineConfig
from engine.kernels import backend, dependent_check
from engine.kernels.aot import Report, accesses_before_wait, broken_promises
from engine.kernels.dependent import dependent_launches, launching_dependents
from engine.kernels.dependent_check import dependent_launch_works
from engine.kernels.gpu import HOPPER
from engine.kernels.promise import Promise
from engine.models.config import load_model_config

TINY = "engine/tiny/checkpoints/ar"
CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(
    torch.cuda.is_available(), reason="tests/gpu runs these kernels on the device"
)

SCRIPT = """
import json, sys
from engine.kernels import aot
from engine.kernels.command import KernelCommand

command = KernelCommand("aot", "", sys.argv[1:])
for variant in command.variants:
    report, problems = aot.check(variant.data, command.gpu)
    early = variant.facts["options"]["launch_pdl"], variant.constants["DEPENDENT"]
    print(json.dumps([variant.kernel, early, report.early, problems]))
"""


def lines(*opcodes: str) -> str:
    return "\n".join(f"        /*0000*/    {opcode} R1, R2 ;" for opcode in opcodes)


def test_accesses_to_memory_before_the_wait_break_the_promise() -> None:
    assert accesses_before_wait(lines("LDC", "ACQBULK", "LDG.E", "STG.E")) == 0
    assert accesses_before_wait(lines("LDC", "LDG.E", "STG.E.64", "ACQBULK", "LDG.E")) == 2
    assert accesses_before_wait(lines("LDC", "LDG.E")) == -1
    for early, problem in ((0, []), (2, ["2 accesses before the wait"]), (-1, ["does not wait"])):
        assert broken_promises(Promise(), Report(32, 0, 0, early=early), HOPPER) == problem


@pytest.mark.slow
@pytest.mark.long
def test_all_small_kernels_of_a_layer_wait_first_when_they_are_launched_early() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    which = ("--target", "cuda:90", "--model", TINY, "--dependent-launch", "--only", "DEPENDENT=True")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *which], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row[0] for row in rows} == {"_rms_norm", "_qk_norm_rope_store", "_decode", "_merge", "_gated"}
    assert all(row[1:] == [[True, True], 0, []] for row in rows)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of a size that the interpreter computes."""
    for name, value in {"LAYERS": 1, "ROUNDS": 2, "SEQS": 2, "CONTEXT_TOKENS": 20, "WIDTH": 32}.items():
        monkeypatch.setattr(dependent_check, name, value)


@interpreted
@pytest.mark.usefixtures("few")
def test_the_check_of_first_use_passes_where_kernels_compute_the_same() -> None:
    with backend.force("triton"):
        assert dependent_launch_works(load_model_config(TINY), torch.float32, CPU)
    assert not dependent_launches()


@pytest.mark.usefixtures("few")
def test_a_device_that_computes_something_else_launches_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    def early(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x[:, : x.shape[1] // 2]) + dependent_launches()  # reads what is not there yet

    monkeypatch.setattr(dependent_check, "swiglu", early)
    with pytest.warns(RuntimeWarning, match="computes something else on this GPU"):
        assert not dependent_launch_works(load_model_config(TINY), torch.float32, CPU)


def test_it_is_off_unless_chosen_and_refused_where_nothing_is_launched() -> None:
    assert not EngineConfig(model=TINY).dependent_launch
    with pytest.raises(InputError, match="nothing is launched on the CPU"):
        EngineConfig(model=TINY, dependent_launch=True).on("cpu")
    assert EngineConfig(model=TINY, dependent_launch=True).on("cuda").dependent_launch


def test_it_ends_with_the_block() -> None:
    with launching_dependents():
        assert dependent_launches()
    assert not dependent_launches()
