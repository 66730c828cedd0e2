"""Measures the denoise rounds of the tiny diffusion model: `workloads/diffusion-tiny.yaml` and its CSV files.

    python benchmarks/diffusion_workload.py [--problems N] [--out workloads]

The engine answers problems of the tiny tasks with every algorithm. For each algorithm one CSV file states, a
line for each request, the denoise rounds of its blocks; the YAML takes the lengths of prompts and answers
from the same run.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine.config import EngineConfig
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.settings import DllmSettings, make_algorithm
from engine.sampling_params import SamplingParams
from engine.tiny import checkpoint
from engine.tiny.tasks import TASKS, make

NAME = "diffusion-tiny"
BLOCK = 32
SLOTS = 16
CHOICES: list[tuple[str, dict[str, Any], int]] = [
    ("LowConfidence", {"threshold": 0.95}, 1),
    ("LowConfidence", {"threshold": 0.8}, 1),
    ("JointThreshold", {"threshold": 0.5, "edit_threshold": 0.0}, 0),
    ("TopKPerStep", {"tokens_per_step": 4}, 1),
]
"""Algorithm, parameters, and the forwards of a block that change nothing."""
HEADER = """\
# yaml-language-server: $schema=workload.schema.json
# Problems of the tiny tasks, answered by the bundled tiny block-diffusion model: a few rounds per block.
#
# Source: measured by this repository's engine on engine/tiny/checkpoints/diffusion, {problems} problems, the
# four tasks in equal shares. A line of a CSV file has the denoise rounds of the blocks of one request; the
# lengths are from the same run. Rounds depend on model and task, not on the machine, and say nothing of a
# larger model. Made by benchmarks/diffusion_workload.py.
#
#   blis run --workload diffusion-tiny --model llada2.0-mini --gpu h200 --latency-model roofline \\
#       --block-size 32 --max-num-seqs 16
version: "2"
category: language
seed: 42
aggregate_rate: 400     # requests per second
num_requests: 20000
kind: diffusion
block_size: 32          # tokens per diffusion block
"""


def label(name: str, parameters: dict[str, Any]) -> str:
    return "-".join([NAME, name, *(f"{value:g}" for value in parameters.values())]) + ".csv"


def answers(name: str, parameters: dict[str, Any], prompts: Sequence[str]) -> list[Any]:
    """The finished sequences of the engine."""
    config = EngineConfig(
        model=str(checkpoint("diffusion")),
        device="cpu",
        block_size=BLOCK,
        max_num_seqs=SLOTS,
        num_kv_blocks=8 * SLOTS,
        max_model_len=128,
    )
    engine = build_diffusion_engine(config, DllmSettings(make_algorithm(name, parameters)))
    limits = SamplingParams(temperature=0, max_tokens=64)
    sequences = [engine.add_request(prompt, limits) for prompt in prompts]
    while engine.has_unfinished:
        engine.step()
    return sequences


def lengths(kind: str, values: Sequence[int]) -> str:
    counts = ", ".join(f"{tokens}: {count}" for tokens, count in sorted(Counter(values).items()))
    return f"    {kind}_distribution:\n      type: empirical\n      params: {{{counts}}}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parents[1] / "workloads")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    rng, names = Random("workload"), list(TASKS)
    prompts = [make(rng, names[index % len(names)])[0] for index in range(options.problems)]
    rng.shuffle(prompts)
    text = HEADER.format(problems=f"{options.problems:,}") + "steps:\n"
    inputs, outputs = list[int](), list[int]()
    for name, parameters, commits in CHOICES:
        sequences = answers(name, parameters, prompts)
        rounds = [[n - commits for n in sequence.request.rounds_per_block] for sequence in sequences]
        file = label(name, parameters)
        source = f"# Denoise rounds per block: {name} {parameters}, {options.problems} problems, tiny model\n"
        rows = "".join(",".join(map(str, blocks)) + "\n" for blocks in rounds)
        (options.out / file).write_text(source + rows, encoding="utf-8")
        given = ", ".join(f"{key}: {value:g}" for key, value in parameters.items())
        text += f"  - algorithm: {name}\n    parameters: {{{given}}}\n    commit_rounds: {commits}\n"
        text += f"    sequences: {file}\n"
        if not inputs:  # lengths as answered by the first
            inputs = [len(sequence.prompt_ids) for sequence in sequences]
            outputs = [len(sequence.output_ids) for sequence in sequences]
        print(name, parameters, Counter(n for blocks in rounds for n in blocks), file=sys.stderr)
    text += "\nclients:\n  - id: problems\n    rate_fraction: 1.0\n    arrival: {process: poisson}\n"
    text += lengths("input", inputs) + lengths("output", outputs)
    (options.out / f"{NAME}.yaml").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
