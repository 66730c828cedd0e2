"""After the warm-up nothing is left to compile: real engines serve, and launch what was launched before.

Without a GPU: the launches are run dry, with the addresses of the engine's own buffers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Engine = tuple[str, dict[str, Any]]

EAGER: dict[str, Engine] = {
    "experts": ("qwen3-30b-a3b", {"max_model_len": 8192}),
    "600 sequences": ("engine/tiny/checkpoints/ar", {"max_num_seqs": 600, "block_size": 64}),
    "diffusion with experts": (
        "llada2.0-mini",
        {"block_size": 32, "max_num_seqs": 48, "max_model_len": 2048, "max_num_batched_tokens": 2048},
    ),
}
WITH_GRAPHS: Engine = ("engine/tiny/checkpoints/ar", {"max_num_seqs": 40})
LONG = ("experts", "600 sequences")


def dry_run(*engines: Engine) -> dict[str, Any]:
    """What `dry_serving` prints of these engines."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = str(Path(__file__).with_name("dry_serving.py"))
    command = [sys.executable, program, json.dumps(engines)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def assert_warm(serving: dict[str, list[str]]) -> None:
    ready, served = set(serving["ready"]), set(serving["served"])
    assert served - ready == set(), "a request would wait for the compiler"
    assert ready - served == set(), "compiled for nothing"


def eagerly(engine: str) -> Engine:
    name, settings = EAGER[engine]
    return name, {**settings, "enforce_eager": True}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("engine", LONG)
def test_serving_launches_what_the_warm_up_has_launched_all_of_it_and_nothing_else(engine: str) -> None:
    assert_warm(dry_run(eagerly(engine))["engines"][0])


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    """One process for all tests below."""
    return dry_run(eagerly("diffusion with experts"), WITH_GRAPHS)


@pytest.mark.slow
def test_block_diffusion_launches_what_its_warm_up_has_launched(printed: dict[str, Any]) -> None:
    assert_warm(printed["engines"][0])


@pytest.mark.slow
def test_with_graphs_nothing_is_left_to_compile_either(printed: dict[str, Any]) -> None:
    ready, served = (set(printed["engines"][1][when]) for when in ("ready", "served"))
    assert served - ready == set()
    assert any("prefill" in name for name in served), "prompts run without graphs"


@pytest.mark.slow
def test_a_dry_run_leaves_no_trace_and_finds_the_same_for_whatever_length_the_memory_allows(
    printed: dict[str, Any],
) -> None:
    """What it pretends to have timed would else decide which configuration really runs."""
    same = {"state kept": True, "repeats": True, "any length": True}
    assert printed["traces"] == {"tuners": 5, **same, "any page": False}


@pytest.mark.slow
def test_a_captured_step_with_prompts_launches_nothing_for_a_layer(printed: dict[str, Any]) -> None:
    assert printed["launches"]["prompt"] == {"layer": 10, "step": 12}
    assert printed["launches"]["prompt, captured"] == {"layer": 0, "step": 1}
