"""The Triton kernels compiled for sm_90: nothing spills, memory suffices, the instructions meant are there.

Compilation needs Triton without its interpreter, hence other processes. Every variant of every bundled model
is checked by `make aot`, in minutes; here are those of a few engines that between them take every kernel and
every branch of it, and of the mixtures of experts the tiles whose pipelines are the largest and the smallest.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.kernels.aot import Report, broken_promises, idle_in, main, summary, tile_loop
from engine.kernels.gpu import HOPPER
from engine.kernels.promise import Promise

TINY, TINY_DIFFUSION = "engine/tiny/checkpoints/ar", "engine/tiny/checkpoints/diffusion"
EXPERTS = "moe_gate.*BLOCK_M=(16|128)|moe_down.*BLOCK_M=64|moe_combine"
FLOAT8 = "attention_decode |prefill_attention_prefill.*(BLOCK_M=16|BLOCK_M=128)|store"
GEMMA = str(Path(__file__).with_name("architectures") / "gemma-3-1b.json")
EIGHTY = str(Path(__file__).with_name("architectures") / "heads-of-80.json")
PARTS_OF_KEYS = "prefill_attention_prefill.*SPLIT=True"
WIDE = "prefill_attention_prefill.*SPLIT=False.*BLOCK_M=(64|128)"
PARTS = {
    "head dim 32": ["--model", TINY],
    "head dim 32, diffusion": ["--model", TINY_DIFFUSION, "--only", "prefill|denoise"],
    "head dim 128": ["--model", "qwen3-8b", "--only", "attention|qkv|norm"],
    "head dim 128, diffusion": ["--model", "llada2.0-mini", "--only", "prefill"],
    "float8 cache": ["--model", "qwen3-8b", "--kv-cache-dtype", "fp8", "--only", FLOAT8],
    "float8 cache, head dim 256": ["--model", GEMMA, "--kv-cache-dtype", "fp8", "--only", WIDE],
    "float8 cache, group of 7": [
        *("--model", "qwen2.5-7b", "--kv-cache-dtype", "fp8", "--dtype", "bfloat16", "float16"),
        *("--block-size", "16", "64", "--only", PARTS_OF_KEYS),
    ],
    "head dim 80": ["--model", EIGHTY, "--block-size", "16", "--only", "prefill.*SPLIT=False"],
    "experts": ["--model", "qwen3-30b-a3b", "--only", EXPERTS],
    "two pages": ["--model", "qwen3-8b", "--only", "attention_decode ", "--block-size", "16", "64"],
    "prompts": ["--model", "qwen3-8b", "--only", "prefill_attention_prefill.*SPLIT=False.*BLOCK_M=128"],
}
"""In parts, so that several processes can share them."""

SCRIPT = """
import json, sys
from dataclasses import asdict
from engine.kernels import aot
from engine.kernels.command import KernelCommand

command = KernelCommand("aot", "", [*sys.argv[1:], "--target", "cuda:90"])
for variant in command.variants:
    report, problems = aot.check(variant.data, command.gpu)
    facts = {"kernel": variant.kernel, "constants": variant.constants, **variant.facts["options"]}
    print(json.dumps({"name": str(variant), "problems": problems, **facts, "report": asdict(report)}))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: in this one Triton may have been imported for its interpreter.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def compiled(part: str) -> list[dict[str, Any]]:
    done = python("-c", SCRIPT, *PARTS[part])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("experts", "two pages", "prompts")])
def test_every_variant_keeps_its_promise(part: str) -> None:
    found = compiled(part)
    assert {row["name"]: row["problems"] for row in found if row["problems"]} == {}
    wide = [row["report"]["opcodes"] for row in found if row["constants"].get("BLOCK_M", 0) >= 64]
    assert wide, "a part without the kernels that matter most"
    assert all(opcodes["HGMMA"] and not opcodes["HMMA"] for opcodes in wide)


@pytest.mark.slow
@pytest.mark.long
def test_experts_take_the_shared_memory_that_was_computed_and_not_more_than_there_is() -> None:
    from engine.kernels.triton.moe import shared_bytes

    found = compiled("experts")
    assert {row["name"]: row["problems"] for row in found if row["problems"]} == {}
    products = [row for row in found if row["kernel"] in ("_gate_up", "_down")]
    assert len(products) == 6 + 4 + 6, "two configurations do not fit at 128 rows"
    for row in products:
        config = Configuration(row["constants"], row["num_stages"])
        matrices = 2 if row["kernel"] == "_gate_up" else 1
        assert row["report"]["shared_bytes"] == shared_bytes(config, row["constants"]["BLOCK_M"], matrices, 2)


@pytest.mark.slow
@pytest.mark.long
def test_a_page_of_64_saves_a_fifth_of_the_instructions_of_a_decode_tile() -> None:
    by_page = {row["constants"]["PAGE_SIZE"]: row["report"] for row in compiled("two pages")}
    assert by_page[64]["tile"] <= 0.8 * by_page[16]["tile"]
    assert by_page[64]["prologue"] <= 0.75 * by_page[16]["prologue"]


@pytest.mark.slow
@pytest.mark.long
def test_the_product_of_the_next_tile_runs_beside_the_softmax_of_this_one() -> None:
    """Without it, two thirds of the instructions of a tile find tensor cores idle."""
    ahead, behind = sorted(compiled("prompts"), key=lambda row: not row["constants"]["AHEAD"])
    assert (ahead["constants"]["AHEAD"], behind["constants"]["AHEAD"]) == (True, False)
    assert ahead["report"]["idle"] < 0.3 * ahead["report"]["tile"]
    assert behind["report"]["idle"] > 0.6 * behind["report"]["tile"]
    assert not ahead["problems"]


def code(*lines: str) -> str:
    return "\n".join(line if line.startswith(".") else f"        /*0000*/    {line} ;" for line in lines)


def test_products_are_under_way_from_their_launch_to_the_wait_for_all_of_them() -> None:
    body = ["MUFU.EX2 R1", "HGMMA.64x64x16 R4, gdesc", "FMUL R1", "WARPGROUP.DEPBAR.LE gsb0, 0x0", "FADD R1"]
    assert idle_in(code("MOV R1, R2", *body, "EXIT "), 1, 5) == 3, "the exponential, the wait and the sum"
    later = [*body[3:], *body[:3]]
    assert idle_in(code(*later), 0, 5) == 3, "that of the turn before is under way when a turn begins"
    assert idle_in(code("HMMA.16816 R4, R4, R5", "FADD R1"), 0, 2) == 0


def test_the_loop_over_tiles_is_the_innermost_that_multiplies() -> None:
    body = ["LDGSTS.E [R1], [R2]", "HMMA.16816 R4, R4, R5", "@P0 BRA `(.L_x_1)"]
    lines = ["MOV R1, R2", "MOV R2, R3", "BRA `(.L_x_9)", ".L_x_0:", "S2R R1", ".L_x_1:", *body]
    lines += ["IADD3 R1, R2", "@P1 BRA `(.L_x_0)", ".L_x_9:", "EXIT "]
    assert tile_loop(code(*lines)) == (4, 3)
    assert tile_loop(code("EXIT ")) == (0, 0)


class Configuration:
    """As much of a `triton.Config` as the computation reads."""

    def __init__(self, kwargs: dict[str, int], num_stages: int) -> None:
        self.kwargs, self.num_stages = kwargs, num_stages


def test_every_kernel_module_is_known_and_promises_something() -> None:
    from engine.kernels.dry_run import KERNEL_MODULES

    folder = Path(importlib.import_module("engine.kernels.triton").__file__ or "").parent
    written = {file.stem for file in folder.glob("*.py") if "@triton.jit" in file.read_text()}
    assert {name.rpartition(".")[2] for name in KERNEL_MODULES} == written - {"attention_tiles", "dependent"}
    for name in KERNEL_MODULES:
        assert callable(importlib.import_module(name).promise)


PROMISE = Promise(("HGMMA",), max_registers=128)
SOUND = Report(128, 0, HOPPER.shared_bytes, {"HGMMA": 4, "LDL": 0, "STL": 0})


def test_a_sound_kernel_breaks_no_promise() -> None:
    assert broken_promises(PROMISE, SOUND, HOPPER) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"opcodes": {"HGMMA": 4, "STL": 2, "LDL": 1}}, "3 spills and 0 B of stack"),
        ({"stack_bytes": 8}, "0 spills and 8 B of stack"),
        ({"shared_bytes": HOPPER.shared_bytes + 1}, "232449 B of shared memory, above 232448"),
        ({"registers": 129}, "129 registers, above 128"),
        ({"opcodes": {"HMMA": 4}}, "no HGMMA instruction"),
    ],
)
def test_a_broken_promise_is_named(change: dict[str, Any], problem: str) -> None:
    assert broken_promises(PROMISE, replace(SOUND, **change), HOPPER) == [problem]


def test_the_interpreter_has_nothing_to_compile(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SystemExit) as stopped:
        main(["--target", "cuda:90"])
    assert stopped.value.code == 2
    assert "unset TRITON_INTERPRET" in capsys.readouterr().err


def test_a_summary_has_a_line_for_each_kernel_with_the_most_registers_of_its_variants() -> None:
    rows = [
        ("_decode", "164 registers, 0 spills, 71688 B shared"),
        ("_merge", "18 registers, 0 spills, 0 B shared"),
        ("_decode", "168 registers, 0 spills, 72192 B shared, 956 + 503 a tile instructions HMMA=32"),
    ]
    assert summary(rows).splitlines() == [
        "decode                   2 variants, at most 168 registers, 0 spills",
        "merge                    1 variants, at most 18 registers, 0 spills",
    ]
