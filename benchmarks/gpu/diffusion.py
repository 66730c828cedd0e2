"""Block diffusion of LLaDA2.0-mini's shape: synchronous batches against FDFO, rounds beside their floor.

    python benchmarks/gpu/diffusion.py [--slots N...] [--requests-per-slot N] [--out DIR]

Dummy weights; every block takes a number of rounds drawn from a distribution (mean 12.5, coefficient of
variation 0.28: what the published FDFO speed-ups imply for LowConfidence on GSM8K). All requests are there
from the beginning: 96 tokens in, 160 out. The floor of a round is the weights in use and the KV cache read
once at the measured bandwidth; of the experts those count that evenly routed tokens go to. The step kernel is
timed by itself, from a CUDA graph. Rows go to `--out`; what is there already is not measured again. For a
look at the code path use `--device cpu --model engine/tiny/checkpoints/diffusion`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import numpy as np
import torch
from bandwidth import read_bandwidth
from floors import forward_bytes
from imposed_steps import ImposedSteps
from rows import Row
from timing import begin, common_options, copies_beyond_cache, end, time_calls

from blis_py.workload.diffusion_steps import MeanAndSpread
from engine.config import EngineConfig
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.settings import DllmSettings
from engine.kernels import backend
from engine.kernels.denoise import Rule, denoise
from engine.models import load_model_config
from engine.sampling_params import SamplingParams

MODEL = "llada2.0-mini"
STEPS = MeanAndSpread(12.5, 0.28)
PROMPT_TOKENS, OUTPUT_TOKENS, MAX_LEN = 96, 160, 512
BLOCK = 32


def build(options: argparse.Namespace, slots: int, fdfo: bool) -> DiffusionEngine:
    config = EngineConfig(
        model=options.model,
        load_format="dummy",
        device=options.device,
        block_size=BLOCK,
        max_num_seqs=slots,
        max_model_len=MAX_LEN,
        num_kv_blocks=slots * MAX_LEN // BLOCK,
        max_num_batched_tokens=max(2048, slots * BLOCK),
        enable_prefix_caching=False,
    )
    algorithm = ImposedSteps(STEPS, np.random.default_rng(0))
    return build_diffusion_engine(config, DllmSettings(algorithm, fdfo=fdfo))


def serve(engine: DiffusionEngine, count: int) -> float:
    """Answers so many prompts; returns the seconds it took."""
    rng = random.Random(0)
    limits = SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    for _ in range(count):
        engine.add_request([rng.randrange(engine.vocab_size) for _ in range(PROMPT_TOKENS)], limits)
    began = time.perf_counter()
    while engine.has_unfinished:
        engine.step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(options: argparse.Namespace, slots: int, fdfo: bool, bytes_per_s: float) -> Row:
    """One mode at one number of slots. Times in ms."""
    engine = build(options, slots, fdfo)
    serve(engine, slots)  # warm-up
    engine.reset()
    seconds = serve(engine, slots * options.requests_per_slot)
    counters, steps = engine.scheduler.counters, engine.recorder.log().steps
    prompts = steps["prefill_blocks"]
    full = [i for i, blocks in enumerate(steps["denoise_blocks"]) if blocks == slots and not prompts[i]]
    kv_tokens = statistics.median(steps["prefill_kv_tokens"][i] for i in full)
    config = load_model_config(options.model)
    dtype = engine.executor.kv[0][0].dtype
    moved = forward_bytes(config, dtype, slots * BLOCK, kv_tokens)
    gpu_ns = statistics.median(steps["gpu_ns"][i] for i in full)
    return {
        "slots": slots,
        "mode": "fdfo" if fdfo else "sync",
        "regime": steps["regime"][full[0]],
        "rounds": counters.rounds,
        "steps_per_block": counters.steps_per_block,
        "seconds": seconds,
        "output_tokens_per_s": counters.emitted_tokens / seconds,
        "round_gpu_ms": gpu_ns / 1e6,
        "launch_bound_share": statistics.mean(steps["launch_bound"][i] for i in full),
        "floor_ms": moved / bytes_per_s * 1e3,
        "bytes_per_s": bytes_per_s,
        "over_floor": gpu_ns / 1e9 / (moved / bytes_per_s),
        "gpu_share": sum(steps["gpu_ns"]) / 1e9 / seconds,
    }


def time_kernel(model: str, blocks: int, name: str) -> Row:
    """The step kernel, all positions masked, in one implementation."""
    vocabulary, rows = load_model_config(model).vocab_size, blocks * BLOCK
    bytes_moved = rows * vocabulary * 4
    places = torch.arange(rows, device="cuda")
    answer = torch.ones((blocks, BLOCK), dtype=torch.bool, device="cuda")
    mask_id = vocabulary - 1
    sets = []
    for _ in range(min(copies_beyond_cache(bytes_moved), 4)):
        ids = torch.full((blocks, BLOCK), mask_id, device="cuda")
        sets.append((ids, torch.randn(rows, vocabulary, device="cuda")))
    calls = [
        lambda ids=ids, logits=logits: denoise(ids, answer, logits, places, mask_id, Rule(0.95))
        for ids, logits in sets
    ]
    with backend.force(name):
        median_s = time_calls(calls).median_s
    return {
        "blocks": blocks,
        "kernel": name,
        "median_us": median_s * 1e6,
        "gb_per_s": bytes_moved / median_s / 1e9,
    }


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--slots", nargs="+", type=int, default=(4, 16, 64))
    parser.add_argument("--requests-per-slot", type=int, default=8)
    options = parser.parse_args()
    rows, on_gpu = begin(options, "diffusion"), options.device == "cuda"
    bytes_per_s = read_bandwidth(options.device)
    for slots in options.slots:
        for fdfo in (False, True):
            key = f"{options.model} {slots} slots, {'fdfo' if fdfo else 'sync'}"
            row = rows.once(key, lambda s=slots, f=fdfo: measure(options, s, f, bytes_per_s))
            print({name: round(v, 3) if isinstance(v, float) else v for name, v in (row or {}).items()})
            if on_gpu:
                torch.cuda.empty_cache()
        for name in ("cuda", "triton") if on_gpu else ():
            key = f"step kernel, {slots} blocks, {name}"
            print(rows.once(key, lambda s=slots, n=name: time_kernel(options.model, s, n)), flush=True)
    end(options, rows)


if __name__ == "__main__":
    main()
