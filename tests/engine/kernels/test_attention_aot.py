"""The attention kernels compiled for sm_90: what an SM has suffices, and the instructions meant are there.

Compilation needs Triton without its interpreter, hence another process. `python -m engine.kernels.aot` checks
every case; here are the ones engines run most.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from engine.kernels.aot import SM90_SHARED_BYTES, AotCase, AotReport, broken_promises

CASES = (
    "decode d128 g4 page16",
    "decode d128 g4 page64",
    "prefill 128x64x3 d128 g4 page16 mask1",
    "prefill 128x64x3 d128 g4 page64 mask32",
    "prefill merge d128",
)
SCRIPT = """
import json, sys
from dataclasses import asdict, replace
from engine.kernels import aot

modules = [name for name in aot.KERNEL_MODULES if "attention" in name]
cases = {case.name: case for case in aot.all_cases(modules)}
reports = {name: asdict(aot.check(cases[name])) for name in sys.argv[1:]}
try:
    aot.check(replace(cases[sys.argv[1]], name="poor", constexprs={}))
except aot.ResourceError as error:
    print(json.dumps({"reports": reports, "error": str(error)}))
"""


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *CASES], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", CASES)
def test_nothing_spills_and_shared_memory_suffices(compiled: dict[str, Any], name: str) -> None:
    report = AotReport(**compiled["reports"][name])
    assert 0 < report.registers <= 255
    assert report.spills == report.stack_bytes == 0
    assert report.shared_bytes <= SM90_SHARED_BYTES


def test_prefill_multiplies_on_warpgroup_tensor_cores(compiled: dict[str, Any]) -> None:
    assert all(compiled["reports"][name]["opcodes"]["HGMMA"] for name in CASES if "prefill 128" in name)


def test_keys_and_values_arrive_by_asynchronous_copies(compiled: dict[str, Any]) -> None:
    assert all(compiled["reports"][name]["opcodes"]["LDGSTS"] for name in CASES if "merge" not in name)


def test_a_case_that_forgets_an_argument_is_refused(compiled: dict[str, Any]) -> None:
    assert "poor: the case gives neither a type nor a value for NUM_KV_HEADS" in compiled["error"]


CASE = AotCase("case", None, {}, {}, expects=("HGMMA",), max_registers=128)
SOUND = AotReport("case", 128, 0, SM90_SHARED_BYTES, {"HGMMA": 4, "LDL": 0, "STL": 0})


def test_a_sound_kernel_breaks_no_promise() -> None:
    assert broken_promises(CASE, SOUND) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"opcodes": {"HGMMA": 4, "STL": 2, "LDL": 1}}, "3 spills and 0 B of stack"),
        ({"stack_bytes": 8}, "0 spills and 8 B of stack"),
        ({"shared_bytes": SM90_SHARED_BYTES + 1}, "232449 B of shared memory, above 232448"),
        ({"registers": 129}, "129 registers, above 128"),
        ({"opcodes": {"HMMA": 4}}, "no HGMMA instruction"),
    ],
)
def test_a_broken_promise_is_named(change: dict[str, Any], problem: str) -> None:
    assert broken_promises(CASE, replace(SOUND, **change)) == [problem]


def test_the_interpreter_has_nothing_to_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine.kernels.aot"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        check=False,
    )
    assert done.returncode == 2
    assert "unset TRITON_INTERPRET" in done.stderr
