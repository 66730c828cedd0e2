"""What FDFO, reuse in place and the re-loop are worth: in the simulator, and on the engine.

    python benchmarks/diffusion.py [--quick] [--model FOLDER] [--load-format dummy] [--slots 4 16]
                                   [--requests-per-slot N] [--steps tasks|imposed]

Prints JSON. `published` compares simulated speed-ups, in rounds, with those measured for LLaDA2.0-mini with
LowConfidence on GSM8K on one H200 (1.30 x at 4 and about 1.45 x at 16 slots). `engine` runs a model in both
modes: rounds are exact and the same on every machine, `busy_s` is the CPU time of the thread on a CPU and the
wall time on CUDA, and `predicted` is what the simulator makes of the measured step counts. With
`--steps imposed` every block takes a number of rounds drawn from a distribution instead of what the model
needs, so that dummy weights will do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from measure import pin
from provenance import provenance

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from blis_py.cluster.diffusion import DiffusionInstance
from blis_py.cluster.diffusion_steps import DenoiseSteps, Histogram, MeanAndSpread, draw_rounds
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion import DiffusionScheduler
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts

PUBLISHED = {4: 1.30, 16: 1.45}
CVS = (0.25, 0.28, 0.30)
MEAN_STEPS = 12.5
SHAPES = {"one block each": (0, 32), "96 in, 160 out": (96, 160)}
FLAT = Linear(LinearCoefficients(LinearCosts(step=1_000_000)))
BLOCK = 32
SEEDS = 10
"""Simulations averaged in a prediction."""
Shape = tuple[int, int]


def simulated_rounds(shapes: list[Shape], steps: DenoiseSteps, slots: int, fdfo: bool, seed: int = 1) -> int:
    """Rounds to serve requests of these (prompt, output) tokens, all there from the beginning."""
    requests = [DiffusionRequest(str(row), 0, p, o, row=row) for row, (p, o) in enumerate(shapes)]
    longest = BLOCK * max(-(-(p + o) // BLOCK) for p, o in shapes)
    config = SchedulerConfig(
        num_kv_blocks=slots * longest // BLOCK,
        max_model_len=longest,
        block_size=BLOCK,
        max_num_seqs=slots,
        max_num_batched_tokens=max(2048, slots * BLOCK),
    )
    core = DiffusionScheduler(config, DiffusionConfig(BLOCK, fdfo=fdfo))
    rounds = draw_rounds(requests, steps, block_tokens=BLOCK, seed=seed)
    return DiffusionInstance(core, FLAT, rounds).run(requests).counters.rounds


def published(blocks_per_slot: int) -> list[dict[str, Any]]:
    """Simulated against published speed-ups."""
    rows = []
    for slots, measured in PUBLISHED.items():
        for cv in CVS:
            for name, shape in SHAPES.items():
                shapes = [shape] * (slots * blocks_per_slot // -(-shape[1] // BLOCK))
                steps = MeanAndSpread(MEAN_STEPS, cv)
                sync, fdfo = (simulated_rounds(shapes, steps, slots, mode) for mode in (False, True))
                rows.append(
                    {
                        "slots": slots,
                        "step_cv": cv,
                        "requests": name,
                        "sync_rounds": sync,
                        "fdfo_rounds": fdfo,
                        "speed_up": sync / fdfo,
                        "published": measured,
                        "error": sync / fdfo / measured - 1,
                    }
                )
    return rows


@dataclass(frozen=True)
class ImposedSteps:
    """An algorithm that takes a drawn number of rounds per block, unmasking evenly from the left."""

    steps: DenoiseSteps
    rng: np.random.Generator

    def max_rounds(self, block_tokens: int) -> int:
        return block_tokens + 1

    def init_step_state(self, blocks: Any) -> dict[str, Any]:
        import torch

        drawn = self.steps.draw(self.rng, len(blocks.ids))
        return {"left": torch.from_numpy(drawn).to(blocks.ids.device)}

    def wanted(self, blocks: Any, state: dict[str, Any]) -> Any:
        return blocks.masked

    def step(self, blocks: Any, logits: Any, state: dict[str, Any]) -> Any:
        import torch

        from engine.kernels.reference.denoise import best_tokens

        masked, left = blocks.masked, state["left"].clamp_min(1)
        take = (masked.sum(dim=1) + left - 1) // left
        chosen = masked & (masked.cumsum(dim=1) <= take.unsqueeze(1))
        tokens, _ = best_tokens(blocks.ids, logits.values, logits.rows, blocks.mask_id)
        blocks.ids.copy_(torch.where(chosen, tokens, blocks.ids))
        state["left"] -= 1
        return ~masked.any(dim=1)


def engine_run(
    options: argparse.Namespace, slots: int, prompts: list[Any], most: int, **modes: bool
) -> dict[str, Any]:
    """One run to the end: rounds, busy time, and what the blocks took."""
    import torch

    from engine.config import EngineConfig
    from engine.diffusion.build import build_diffusion_engine
    from engine.diffusion.low_confidence import LowConfidence
    from engine.diffusion.settings import DllmSettings
    from engine.sampling_params import SamplingParams

    imposed = ImposedSteps(MeanAndSpread(MEAN_STEPS, 0.28), np.random.default_rng(0))
    algorithm = imposed if options.steps == "imposed" else LowConfidence()
    config = EngineConfig(
        model=options.model,
        load_format=options.load_format,
        block_size=BLOCK,
        max_num_seqs=slots,
        max_model_len=512,
        num_kv_blocks=slots * 512 // BLOCK,
        max_num_batched_tokens=max(2048, slots * BLOCK),
        enable_prefix_caching=False,
    )
    engine = build_diffusion_engine(config, DllmSettings(algorithm, **modes))
    limits = SamplingParams(temperature=0, max_tokens=most, ignore_eos=options.steps == "imposed")
    sequences = [engine.add_request(prompt, limits) for prompt in prompts]
    cuda = torch.cuda.is_available()
    clock = time.perf_counter if cuda else time.thread_time
    began = clock()
    while engine.has_unfinished:
        engine.step()
    if cuda:
        torch.cuda.synchronize()
    counters = engine.scheduler.counters
    return {
        "rounds": counters.rounds,
        "busy_s": clock() - began,
        "scheduler_calls": counters.batches,
        "allocator_calls": counters.allocator_calls,
        "unfinished_allocator_calls": counters.unfinished_allocator_calls,
        "output_tokens": counters.emitted_tokens,
        "steps_per_block": counters.steps_per_block,
        "shapes": [(len(s.prompt_ids), len(s.output_ids)) for s in sequences],
        "block_rounds": [n for s in sequences for n in s.request.rounds_per_block],  # type: ignore[attr-defined]
    }


def make_prompts(options: argparse.Namespace, count: int) -> tuple[list[Any], int]:
    """Problems of the tiny tasks, or random tokens; and the output limit."""
    rng = Random("benchmark")
    if options.steps == "tasks":
        from engine.tiny.tasks import TASKS, make

        names = list(TASKS)
        return [make(rng, rng.choice(names))[0] for _ in range(count)], 64
    return [[rng.randrange(200) for _ in range(96)] for _ in range(count)], 160


def measured(options: argparse.Namespace, slots: int) -> dict[str, Any]:
    """The engine in both modes and with the switches off, beside the simulator's prediction."""
    prompts, most = make_prompts(options, slots * options.requests_per_slot)
    runs = {
        "fdfo": engine_run(options, slots, prompts, most),
        "sync": engine_run(options, slots, prompts, most, fdfo=False),
        "no_reuse": engine_run(options, slots, prompts, most, reuse_in_place=False, reloop=False),
        "no_reloop": engine_run(options, slots, prompts, most, reloop=False),
    }
    fdfo, sync = runs["fdfo"], runs["sync"]
    counts = Counter(rounds - 1 for rounds in fdfo["block_rounds"])
    histogram = Histogram({max(steps, 1): float(blocks) for steps, blocks in counts.items()})
    own = [
        sum(simulated_rounds(fdfo["shapes"], histogram, slots, mode, seed) for seed in range(SEEDS))
        for mode in (False, True)
    ]
    steps = np.array(fdfo["block_rounds"]) - 1
    row: dict[str, Any] = {
        "slots": slots,
        "requests": len(prompts),
        "denoise_steps": {"mean": float(steps.mean()), "cv": float(steps.std() / steps.mean())},
        "denoise_histogram": dict(sorted(counts.items())),
        "speed_up_rounds": sync["rounds"] / fdfo["rounds"],
        "speed_up_busy": sync["busy_s"] / fdfo["busy_s"],
        "predicted": own[0] / own[1],
        "reloop_gain": runs["no_reloop"]["busy_s"] / fdfo["busy_s"] - 1,
        "reuse_gain": runs["no_reuse"]["busy_s"] / runs["no_reloop"]["busy_s"] - 1,
    }
    row["prediction_error"] = row["predicted"] / row["speed_up_rounds"] - 1
    for name, run in runs.items():
        row[name] = {key: value for key, value in run.items() if key not in ("shapes", "block_rounds")}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small cases, simulator only")
    parser.add_argument("--model", help="folder or bundled model; default: the tiny diffusion checkpoint")
    parser.add_argument("--load-format", default="safetensors", help="`dummy`: random weights")
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--requests-per-slot", type=int, default=40)
    parser.add_argument("--steps", choices=("tasks", "imposed"), default="tasks")
    options = parser.parse_args()
    core = pin()
    result: dict[str, Any] = {"published": published(20 if options.quick else 250)}
    if not options.quick:
        import torch

        torch.set_num_threads(1)
        if options.model is None:
            from engine.tiny import checkpoint

            options.model = str(checkpoint("diffusion"))
        result["engine"] = [measured(options, slots) for slots in options.slots]
        result["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result["provenance"] = provenance(core)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
