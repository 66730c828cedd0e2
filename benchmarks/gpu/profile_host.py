"""What a round of a profile costs the host, without a GPU: CPU time and function calls of its visits.

    OMP_NUM_THREADS=1 python benchmarks/gpu/profile_host.py [--max-model-len N]

A model and a sampling kernel that do nothing stand in for the real ones, with captured buckets and inputs
made as for a GPU, so that what is left is what the GPU would wait for: placing sequences, the host's part of
every step, samples and journal. Limits and plan are those of Qwen3-8B on an H100. Beside it stands the least
that the GPU could need: for each forward of a visit the weights and the KV cache read once, or its products
computed, at nine tenths of the bandwidth and 0.6 of the rate in the datasheet. The second round counts, when
pages have been used. Both, and the time to load the model and capture graphs (`--start`), give the times of
the first usable fit and of four rounds: every shape is visited once to warm up. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from floors import forward_bytes

sys.path.append(str(Path(__file__).resolve().parents[1]))
import engine_host_overhead as bare

import engine.sampler
from engine.batch import BatchBuilder
from engine.build import build_engine
from engine.clock import WallClock
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.graphs import DecodeGraphs, default_buckets
from engine.models import load_model_config
from engine.profile.campaign import measure
from engine.profile.measure import StepBench
from engine.profile.plan import plan, sentinel
from engine.profile.prompts import ProfilePrompts
from engine.profile.run import MAX_SEQS, MAX_TOKENS
from engine.profile.shapes import GRIDS, Shape
from engine.profile.store import ProfileStore

MODEL, PARAMETERS = "qwen3-8b", 7.57e9
BLOCK_SIZE, BLOCKS = 64, 5_400
SEQS, TOKENS = MAX_SEQS, MAX_TOKENS
BYTES_PER_S, FLOP_PER_S = 0.9 * 3.35e12, 0.6 * 0.989e15
"""An assumption: these shares of what the datasheet promises."""
COUNTED = 40
"""Shapes whose calls are counted."""


def engine_of_nothing(max_model_len: int) -> LLMEngine:
    """As `build_engine` would make it on a GPU, but for the kernels."""
    config = EngineConfig(
        model="none",
        device="cpu",
        max_model_len=max_model_len,
        num_kv_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        max_num_seqs=SEQS,
        max_num_batched_tokens=TOKENS,
    )
    model = bare.NoModel()
    model.config.max_position_embeddings = max_model_len
    made = build_engine(config, model=model, clock=WallClock())
    buckets = default_buckets(SEQS)
    made.executor.builder = builder = BatchBuilder(
        max_seqs=SEQS,
        max_tokens=TOKENS,
        max_model_len=max_model_len,
        block_size=config.block_size,
        device=torch.device("cpu"),
        largest_bucket=max(buckets),
        on_device=True,
    )
    builder.tables._shared = False  # changed pages are gathered and sent, as to a GPU

    def capture(run: Any) -> Any:
        return (lambda: None), run()

    made.executor.graphs = DecodeGraphs(made.executor.forward, builder, max_model_len, buckets, capture)
    return made


def floor_s(shape: Shape) -> float:
    """The least the GPU needs for the forwards of a visit, the one that leads to them included."""
    config = load_model_config(MODEL)
    tokens = len(shape.decodes) + sum(new for new, _ in shape.prefills)
    read_s = forward_bytes(config, torch.bfloat16, tokens, sum(shape.contexts)) / BYTES_PER_S
    pairs = sum(new * past + new * (new + 1) // 2 for new, past in shape.prefills)
    attention = 4 * pairs * config.num_heads * config.head_dim * config.num_layers
    lead_s = forward_bytes(config, torch.bfloat16, 1, sum(shape.decodes)) / BYTES_PER_S
    return lead_s + shape.steps * max(read_s, (2 * PARAMETERS * tokens + attention) / FLOP_PER_S)


def count_calls(bench: StepBench, shape: Shape) -> int:
    """Python and C functions called in a visit."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        bench.visit(shape)
    finally:
        sys.setprofile(None)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max-model-len", type=int, default=32768)
    parser.add_argument("--start", type=float, default=30, help="seconds before the first visit")
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine.sampler.sample = bare.no_sampling
    made = engine_of_nothing(options.max_model_len)
    bench = StepBench(made, ProfilePrompts(made.vocab_size, None, 0))
    shapes = plan(bench.limits, GRIDS["full"])
    dirty = []
    with TemporaryDirectory() as folder:
        store = ProfileStore(Path(folder), {"settings": {}})
        measure(bench, shapes, sentinel(shapes), store, rounds=2,
                progress=lambda what, done, total: dirty.append(time.thread_time()))  # fmt: skip
    visits = len(dirty) // 2
    host_s, gpu_s = dirty[-1] - dirty[visits], sum(map(floor_s, shapes))
    calls = [count_calls(bench, shape) for shape in shapes[:: len(shapes) // COUNTED]]
    result = {
        "max_model_len": options.max_model_len,
        "shapes": len(shapes),
        "context_tokens": sum(sum(shape.contexts) for shape in shapes),
        "host_s": host_s,
        "host_ms_per_shape": host_s / visits * 1e3,
        "gpu_floor_s": gpu_s,
        "first_fit_s": options.start + 2 * (host_s + gpu_s),
        "four_rounds_s": options.start + 5 * (host_s + gpu_s),
        "host_share_at_the_floor": host_s / (host_s + gpu_s),
        "calls_per_shape": {"mean": statistics.mean(calls), "median": statistics.median(calls)},
    }
    print(
        json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in result.items()}, indent=1)
    )


if __name__ == "__main__":
    main()
