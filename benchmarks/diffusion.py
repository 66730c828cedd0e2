"""What FDFO, reuse in place and the re-loop are worth: in the simulator, and on the engine.

    python benchmarks/diffusion.py [--quick] [--model FOLDER] [--load-format dummy] [--slots 4 16]
                                   [--requests-per-slot N] [--steps tasks|imposed] [--repeats N]
                                   [--switch-repeats N] [--out FILE]

Prints JSON, or writes it to a file. `published` compares simulated speed-ups, in rounds, with those measured
for LLaDA2.0-mini with LowConfidence on GSM8K on one H200 (1.30 x at 4 and about 1.45 x at 16 slots).
`engine` runs a model in both modes. Rounds are exact, the same on every machine; `busy_s` is CPU time by the
steady clock on a CPU and the wall time on CUDA, in runs that follow one another. A run of some hundred
requests scatters by a few per cent by itself: `speed_up_queued` has each of them eight times, in random
order, with the rounds that the engine took. `predicted_by_sequences` and `_by_histogram` are what the
simulator makes of the measured step counts alone, drawn as whole requests or from one histogram for all
blocks, and the errors are against that. `switches` are the gains of re-looping and of reuse in place
(`reuse_gain`: without re-looping), measured by engines in lockstep (`diffusion_switches.py`). There every
block takes an imposed number of rounds, drawn from the distribution of `published`; `--steps imposed` does
so for `engine` too, so that dummy weights will do.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from measure import pin
from provenance import provenance

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.append(str(Path(__file__).resolve().parent / "gpu"))

from blis_py.cluster.instances.diffusion import BlockDiffusion
from blis_py.cluster.simulation import simulate
from blis_py.cluster.topology import Cluster
from blis_py.core.config import SchedulerConfig
from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.latency.linear import Linear, LinearCoefficients, LinearCosts
from blis_py.requests.table import RequestTable
from blis_py.workload.diffusion import draw_rounds
from blis_py.workload.diffusion_steps import Histogram, MeanAndSpread, Sequences, Steps

if TYPE_CHECKING:
    from engine.diffusion.engine import DiffusionEngine
    from engine.sequence import Sequence

PUBLISHED = {4: 1.30, 16: 1.45}
CVS = (0.25, 0.28, 0.30)
MEAN_STEPS = 12.5
SHAPES = {"one block each": (0, 32), "96 in, 160 out": (96, 160)}
FLAT = Linear(LinearCoefficients(LinearCosts(step=1_000_000)))
BLOCK = 32
SEEDS = 6
"""Simulations averaged in a prediction."""
ENOUGH = 480
"""Requests: slots that stand empty at the end hardly count."""
SWITCHED_PER_SLOT = 4
"""Requests per slot where the switches are measured."""
QUEUED = 8
"""How often each measured request comes in `speed_up_queued`."""
Shape = tuple[int, int]


def simulated_rounds(
    shapes: list[Shape], steps: Steps | list[list[int]], slots: int, fdfo: bool, seed: int = 1
) -> int:
    """Rounds to serve requests of these (prompt, output) tokens, all there from the beginning.

    Args:
        steps: a distribution to draw from, or the forwards of each block.
    """
    requests = [DiffusionRequest(str(row), 0, p, o, row=row) for row, (p, o) in enumerate(shapes)]
    longest = BLOCK * max(-(-(p + o) // BLOCK) for p, o in shapes)
    config = SchedulerConfig(
        num_kv_blocks=slots * longest // BLOCK,
        max_model_len=longest,
        block_size=BLOCK,
        max_num_seqs=slots,
        max_num_batched_tokens=max(2048, slots * BLOCK),
    )
    rounds = steps if isinstance(steps, list) else draw_rounds(requests, steps, block_tokens=BLOCK, seed=seed)
    mode = DiffusionConfig(BLOCK, fdfo=fdfo)
    table = RequestTable.build(np.zeros(len(shapes), dtype=np.int64), *np.array(shapes).T)
    kind = BlockDiffusion(rounds, mode)
    return simulate(table, Cluster.of(scheduler=config, latency=FLAT), kind=kind).instances[0].steps


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


def engine_with(
    options: argparse.Namespace,
    slots: int,
    clock: str = "wall",
    yardstick_us: tuple[float, float] | None = None,
    **modes: bool,
) -> DiffusionEngine:
    """A fresh engine; `modes` as for `DllmSettings`."""
    from imposed_steps import ImposedSteps

    from engine.config import EngineConfig
    from engine.diffusion.build import build_diffusion_engine
    from engine.diffusion.low_confidence import LowConfidence
    from engine.diffusion.settings import DllmSettings

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
        clock=clock,
        yardstick_us=yardstick_us,
    )
    return build_diffusion_engine(config, DllmSettings(algorithm, **modes))


def busy_s() -> float:
    """CPU time of the thread on a CPU, wall time on CUDA once all of its work is done."""
    import torch

    if not torch.cuda.is_available():
        return time.thread_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def add_all(
    engine: DiffusionEngine, options: argparse.Namespace, prompts: list[Any], most: int
) -> list[Sequence]:
    """The requests, and the beginning of the imposed steps: every time the same."""
    from imposed_steps import ImposedSteps

    from engine.sampling_params import SamplingParams

    algorithm = engine.executor.slots.algorithm
    if isinstance(algorithm, ImposedSteps):
        algorithm.rng.bit_generator.state = np.random.default_rng(0).bit_generator.state
    limits = SamplingParams(temperature=0, max_tokens=most, ignore_eos=options.steps == "imposed")
    return [engine.add_request(prompt, limits) for prompt in prompts]


def engine_run(
    options: argparse.Namespace,
    slots: int,
    prompts: list[Any],
    most: int,
    yardstick_us: tuple[float, float] | None = None,
    **modes: bool,
) -> dict[str, Any]:
    """One run to the end: rounds, busy time, and what the blocks took."""
    import torch

    cuda = torch.cuda.is_available()
    engine = engine_with(options, slots, "wall" if cuda else "steady", yardstick_us, **modes)
    sequences = add_all(engine, options, prompts, most)
    engine.clock.restart()
    while engine.has_unfinished:
        engine.step()
    if cuda:
        torch.cuda.synchronize()
    seconds = engine.clock.now_ns() / 1e9
    counters = engine.scheduler.counters
    return {
        "rounds": counters.rounds,
        "busy_s": seconds,
        "yardstick_us": engine.recorder.meta.get("yardstick_us"),
        "scheduler_calls": counters.batches,
        "allocator_calls": counters.allocator_calls,
        "unfinished_allocator_calls": counters.unfinished_allocator_calls,
        "output_tokens": counters.emitted_tokens,
        "steps_per_block": counters.steps_per_block,
        "shapes": [(len(s.prompt_ids), len(s.output_ids)) for s in sequences],
        "block_rounds": [list(s.request.rounds_per_block) for s in sequences],  # type: ignore[attr-defined]
    }


def make_prompts(options: argparse.Namespace, count: int) -> tuple[list[Any], int]:
    """Problems of the tiny tasks, or random tokens; and the output limit."""
    rng = Random("benchmark")
    if options.steps == "tasks":
        from engine.tiny.tasks import TASKS, make

        names = list(TASKS)
        return [make(rng, rng.choice(names))[0] for _ in range(count)], 64
    return [[rng.randrange(200) for _ in range(96)] for _ in range(count)], 160


MODES: dict[str, dict[str, bool]] = {
    "fdfo": {},
    "sync": {"fdfo": False},
    "no_reuse": {"reloop": False, "reuse_in_place": False},
}


def measured(options: argparse.Namespace, slots: int) -> dict[str, Any]:
    """The engine in both modes and with the switches off, beside the simulator's prediction."""
    per_slot = options.requests_per_slot or max(ENOUGH // slots, 40)
    prompts, most = make_prompts(options, slots * per_slot)
    report = engine_run(options, slots, prompts[:slots], most)["yardstick_us"]  # and warm-up
    pace = (report[0], report[1]) if report else None
    runs: dict[str, dict[str, Any]] = {}
    busy: dict[str, list[float]] = {name: [] for name in MODES}
    for _ in range(options.repeats):  # interleaved: what disturbs the machine disturbs all of them
        for name, modes in MODES.items():
            runs[name] = engine_run(options, slots, prompts, most, pace, **modes)
            busy[name].append(runs[name]["busy_s"])
    fdfo, sync = runs["fdfo"], runs["sync"]
    denoise = [[rounds - 1 for rounds in request] for request in fdfo["block_rounds"]]
    blocks = np.array([steps for request in denoise for steps in request])
    counts = Counter(blocks.tolist())
    row: dict[str, Any] = {
        "slots": slots,
        "requests": len(prompts),
        "repeats": options.repeats,
        "denoise_steps": {"mean": float(blocks.mean()), "cv": float(blocks.std() / blocks.mean())},
        "denoise_histogram": {int(steps): counts[steps] for steps in sorted(counts)},
        "speed_up_rounds": sync["rounds"] / fdfo["rounds"],
        "speed_up_busy": ratio(busy["sync"], busy["fdfo"]),
    }
    histogram = Histogram({max(steps, 1): float(count) for steps, count in counts.items()})
    order = list(range(len(prompts))) * QUEUED
    Random("order").shuffle(order)
    shapes, taken = ([fdfo[name][index] for index in order] for name in ("shapes", "block_rounds"))
    exact = [simulated_rounds(shapes, taken, slots, mode) for mode in (False, True)]
    row["speed_up_queued"] = exact[0] / exact[1]
    for name, steps in (("sequences", Sequences(denoise)), ("histogram", histogram)):
        own = [
            sum(simulated_rounds(shapes, steps, slots, mode, seed) for seed in range(SEEDS))
            for mode in (False, True)
        ]
        row[f"predicted_by_{name}"] = own[0] / own[1]
        row[f"error_by_{name}"] = own[0] / own[1] / row["speed_up_queued"] - 1
    for name, run in runs.items():
        row[name] = {key: value for key, value in run.items() if key not in ("shapes", "block_rounds")}
        row[name]["busy_s"] = median(busy[name])
    return row


def switches(options: argparse.Namespace, slots: int) -> dict[str, Any]:
    """What reuse in place and the re-loop gain, with imposed steps."""
    from diffusion_switches import switch_gains

    imposed = argparse.Namespace(**{**vars(options), "steps": "imposed"})
    prompts, most = make_prompts(imposed, slots * SWITCHED_PER_SLOT)
    gains = switch_gains(
        partial(engine_with, imposed, slots),
        lambda engine: add_all(engine, imposed, prompts, most),
        busy_s,
        options.switch_repeats,
    )
    return {"slots": slots, "requests": len(prompts), **gains}


def ratio(slow: list[float], fast: list[float]) -> float:
    """Median of the ratios of runs that followed one another."""
    return median(a / b for a, b in zip(slow, fast, strict=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small cases, simulator only")
    parser.add_argument("--model", help="folder or bundled model; default: the tiny diffusion checkpoint")
    parser.add_argument("--load-format", default="safetensors", help="`dummy`: random weights")
    parser.add_argument("--slots", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--requests-per-slot", type=int, help="default: 480 in all, at least 40")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--switch-repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, help="such as benchmarks/results/diffusion.json")
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
        result["switches"] = [switches(options, slots) for slots in options.slots]
        result["device"] = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result["provenance"] = provenance(core)
    text = json.dumps(result, indent=2) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
