"""After the warm-up nothing is left to compile: real engines serve, and launch what was launched before.

Without a GPU: the launches are run dry, with the addresses of the engine's own buffers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EAGER = {
    "experts": ("qwen3-30b-a3b", "max_model_len=8192"),
    "600 sequences": ("engine/tiny/checkpoints/ar", "max_num_seqs=600", "block_size=64"),
    "diffusion with experts": ("llada2.0-mini", "block_size=32", "max_num_seqs=64", "max_model_len=4096"),
}
LONG = ("experts", "600 sequences")


def served(*arguments: str) -> tuple[set[str], set[str]]:
    """Kernel variants before the first request, and of the requests."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = str(Path(__file__).with_name("dry_serving.py"))
    done = subprocess.run(
        [sys.executable, program, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return set(found["ready"]), set(found["served"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(words, id=name, marks=[pytest.mark.long] if name in LONG else [])
        for name, words in EAGER.items()
    ],
)
def test_serving_launches_what_the_warm_up_has_launched_all_of_it_and_nothing_else(
    arguments: tuple[str, ...],
) -> None:
    ready, launched = served(*arguments, "enforce_eager=true")
    assert launched - ready == set(), "a request would wait for the compiler"
    assert ready - launched == set(), "compiled for nothing"


@pytest.mark.slow
def test_with_graphs_nothing_is_left_to_compile_either() -> None:
    ready, launched = served("engine/tiny/checkpoints/ar", "max_num_seqs=40")
    assert launched - ready == set()
    assert any("prefill" in name for name in launched), "prompts run without graphs"


DRY = """
from engine.config import EngineConfig
from engine.kernels.dry_run import recorded
from engine.kernels.gpu import HOPPER
from engine.kernels.triton.autotune import TUNERS
from engine.models.config import load_model_config
from engine.variants import variants
import engine.kernels.triton.moe, engine.kernels.triton.prefill_attention
from triton import knobs
from triton.runtime.driver import driver

def state():
    return knobs.runtime.jit_cache_hook, driver._active, [dict(vars(tuner)) for tuner in TUNERS]

def found(**settings):
    config = EngineConfig(model="", **settings)
    return variants(load_model_config("engine/tiny/checkpoints/ar"), config, HOPPER)

before = state()
once, again, shorter, larger_pages = found(), found(), found(max_model_len=480), found(block_size=32)
print(len(TUNERS), state() == before, once == again == shorter, once == larger_pages)
"""


@pytest.mark.slow
def test_a_dry_run_leaves_no_trace_and_finds_the_same_for_whatever_length_the_memory_allows() -> None:
    """What it pretends to have timed would else decide which configuration really runs."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", DRY], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "5 True True False\n", done.stderr
