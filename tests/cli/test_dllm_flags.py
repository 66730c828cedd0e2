"""Block diffusion from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import blis_py
from blis_py.errors import InputError

Blis = Callable[..., tuple[int, str, str]]
TINY = ("run", "--workload", "diffusion-tiny", "--model", "llada2.0-mini", "--gpu", "h200")
SHAPE = ("--latency-model", "roofline", "--block-size", "32", "--max-num-seqs", "8", "--num-requests", "80")


def summary(blis: Blis, *flags: str) -> dict[str, Any]:
    code, out, err = blis(*TINY, *SHAPE, "--format", "json", *flags)
    assert code == 0, err
    cluster: dict[str, Any] = json.loads(out)["cluster"]
    return cluster


@pytest.mark.slow
@pytest.mark.parametrize("off", [*product([True, False], repeat=3)], ids=str)
def test_all_combinations_of_the_switches_run(blis: Blis, off: tuple[bool, bool, bool]) -> None:
    switches = ("fdfo", "in-place-reuse", "re-loop")
    flags = [f"--{'no-' if no else ''}dllm-{name}" for name, no in zip(switches, off, strict=True)]
    flags += ["--dllm-algorithm", "JointThreshold"]  # many rounds: there is something to re-loop
    blocks = summary(blis, *flags)["diffusion"]
    no_fdfo, no_reuse, no_reloop = off
    assert (blocks["idle_block_rounds"] > 0) == no_fdfo
    assert (blocks["unfinished_allocator_calls"] > 0) == (no_reuse and not no_fdfo)
    if not no_fdfo:
        default = summary(blis, *flags[3:])["diffusion"]
        assert (blocks["scheduler_calls"] > default["scheduler_calls"]) == no_reloop


def test_the_algorithm_chooses_the_step_counts(blis: Blis, tmp_path: Path) -> None:
    low, fixed = (
        summary(blis, "--dllm-algorithm", name)["diffusion"] for name in ("LowConfidence", "TopKPerStep")
    )
    assert fixed["steps_per_block"] > 2 * low["steps_per_block"]
    parameters = tmp_path / "algorithm.yaml"
    parameters.write_text("threshold: 0.8\n")
    bold = summary(blis, "--dllm-algorithm", "LowConfidence", "--dllm-config", str(parameters))["diffusion"]
    assert bold["steps_per_block"] < low["steps_per_block"]
    parameters.write_text("threshold: 0.7\n")
    code, _, err = blis(*TINY, *SHAPE, "--dllm-config", parameters)
    assert code == 2
    assert "no step counts of any algorithm (threshold 0.7)" in err


def test_switches_have_the_costs_they_are_given(blis: Blis) -> None:
    costs = ("--dllm-schedule-us", "2000", "--dllm-allocator-us", "100")
    cheap, dear = summary(blis), summary(blis, *costs)
    assert dear["e2e_ms"]["mean"] > cheap["e2e_ms"]["mean"]
    many = (*costs, "--dllm-algorithm", "JointThreshold")
    looped, rescheduled = summary(blis, *many), summary(blis, *many, "--no-dllm-re-loop")
    assert rescheduled["e2e_ms"]["mean"] > looped["e2e_ms"]["mean"]


def test_a_folder_holds_everything_and_its_config_runs_again(blis: Blis, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert blis(*TINY, *SHAPE, "--slo", "ttft.p99=9s", "--out", out, "--no-plots")[0] == 0
    requests = (out / "requests.csv").read_text().splitlines()
    assert requests[0].endswith("blocks,denoise_rounds,time_per_block_ms")
    assert len(requests) == 81
    assert "denoise_blocks" in (out / "steps.csv").read_text().splitlines()[0]
    first = json.loads((out / "summary.json").read_text())
    assert first["slo"][0]["met"]
    assert blis("run", "--config", out / "config.yaml", "--out", tmp_path / "again", "--no-plots")[0] == 0
    assert json.loads((tmp_path / "again" / "summary.json").read_text()) == first


def test_the_table_shows_blocks(blis: Blis) -> None:
    code, out, err = blis(*TINY, *SHAPE, "--format", "table", "-v")
    assert code == 0
    assert "tokens per block and round" in out
    assert "block diffusion in blocks of 32, first done first out" in err


def test_generated_requests_and_traces_become_diffusion_requests(blis: Blis, tmp_path: Path) -> None:
    said = tmp_path / "blocks.yaml"
    said.write_text("kind: diffusion\nsteps: {mean: 12.5, cv: 0.28}\n")
    flags = (*SHAPE, "--format", "json", "--dllm-workload", said)
    code, out, _ = blis("run", "--model", "llada2.0-mini", "--gpu", "h200", "--rate", 20, *flags)
    assert code == 0
    assert json.loads(out)["cluster"]["diffusion"]["steps_per_block"] == pytest.approx(13.5, rel=0.05)
    code, _, err = blis(*TINY, *flags)
    assert code == 2
    assert "--dllm-workload: the workload spec says it already" in err


CLIENT = """
- id: {name}
  rate_fraction: 1.0
  arrival: {{process: poisson}}
  input_distribution: {{type: constant, params: {{value: 90}}}}
  output_distribution: {{type: constant, params: {{value: 40}}}}
"""
DIFFUSION = "  kind: diffusion\n  steps: {mean: 8, cv: 0.2}\n"


def spec(folder: Path, *clients: str) -> Path:
    path = folder / "spec.yaml"
    text = "".join(CLIENT.format(name=f"c{index}") + each for index, each in enumerate(clients))
    path.write_text(f"aggregate_rate: 5\nnum_requests: 20\nclients:{text}")
    return path


@pytest.mark.parametrize(
    ("clients", "problem"),
    [
        ((DIFFUSION, ""), "c0 fills blocks by diffusion, c1 is autoregressive: no instance serves both"),
        ((DIFFUSION, DIFFUSION + "  block_size: 16\n"), "c0 has blocks of 32 tokens, c1 of 16"),
    ],
)
def test_what_no_instance_can_serve_is_refused(
    tmp_path: Path, clients: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        blis_py.build(model="llada2.0-mini", block_size=32, max_num_seqs=8, workload=spec(tmp_path, *clients))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--no-dllm-fdfo",), "dllm.fdfo: has no use: the workload is autoregressive"),
        (("--dllm-algorithm", "LowConfidence"), "dllm.algorithm: has no use"),
    ],
)
def test_settings_without_use_are_refused(
    blis: Blis, small: tuple[str, ...], flags: tuple[str, ...], problem: str
) -> None:
    code, _, err = blis("run", *small, *flags)
    assert code == 2
    assert problem in err


def test_a_page_holds_whole_blocks(blis: Blis) -> None:
    code, _, err = blis(*TINY, "--max-num-seqs", 8)
    assert code == 2
    assert "block_size: a page must hold whole diffusion blocks" in err
