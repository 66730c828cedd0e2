"""Decode steps of whole models beside their memory floor: weights and KV read once at the measured bandwidth.

    python benchmarks/gpu/decode_steps.py [--model NAME...] [--batch N...] [--context N] [--out DIR]

Dummy weights, distinct random prompts. Each batch is decoded by the engine itself; the median of the steps'
GPU times counts (CUDA events around forward and sampling). The floor is that of the weights a decode reads:
no embedding table, and of a mixture of experts those that evenly routed tokens go to. Rows go to `--out`;
what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics

import torch
from bandwidth import read_bandwidth
from floors import forward_bytes
from rows import Row, Rows
from timing import begin, common_options, end

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.models import load_model_config
from engine.sampling_params import SamplingParams

MODELS = ("qwen3-8b", "llama-3.1-8b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-14b", "qwen3-30b-a3b")


def measure(
    engine: LLMEngine, model: str, batch: int, options: argparse.Namespace, bytes_per_s: float
) -> Row:
    """Decodes `batch` prompts of `--context` tokens; the first third of the steps is left out."""
    config, rng = load_model_config(model), random.Random(batch)
    params = SamplingParams(temperature=0, max_tokens=options.steps, ignore_eos=True)
    for _ in range(batch):
        engine.add_request([rng.randrange(config.vocab_size) for _ in range(options.context)], params)
    before = len(engine.recorder.log())
    while engine.has_unfinished:
        engine.step()
    log = engine.recorder.log()
    steps = [
        i
        for i in range(before, len(log))
        if not log.steps["prefill_seqs"][i] and log.steps["decode_seqs"][i] == batch
    ]
    steps = steps[len(steps) // 3 :]
    gpu_ns = statistics.median(log.steps["gpu_ns"][i] for i in steps)
    kv_tokens = statistics.median(log.steps["decode_kv_tokens"][i] for i in steps)
    whole_ns = statistics.median(log.steps["end_ns"][i] - log.steps["start_ns"][i] for i in steps)
    dtype = next(iter(engine.executor.forward.kv))[0].dtype
    floor_s = forward_bytes(config, dtype, batch, kv_tokens) / bytes_per_s
    return {
        "model": model,
        "batch": batch,
        "context": int(kv_tokens / batch),
        "regime": log.steps["regime"][steps[0]],
        "bucket": log.steps["bucket"][steps[0]],
        "steps": len(steps),
        "gpu_ms": gpu_ns / 1e6,
        "host_ms": (whole_ns - gpu_ns) / 1e6,
        "launch_bound_share": statistics.mean(log.steps["launch_bound"][i] for i in steps),
        "floor_ms": floor_s * 1e3,
        "bytes_per_s": bytes_per_s,
        "over_floor": gpu_ns / 1e9 / floor_s,
    }


def measure_model(rows: Rows, model: str, options: argparse.Namespace, bytes_per_s: float) -> None:
    """All batches of a model; it is not loaded if they have been measured."""
    longest = options.context + options.steps
    engine: LLMEngine | None = None

    def built() -> LLMEngine:
        nonlocal engine
        if engine is None:
            engine = build_engine(
                EngineConfig(
                    model=model,
                    load_format="dummy",
                    device=options.device,
                    max_model_len=longest,
                    num_kv_blocks=None
                    if options.device == "cuda"
                    else max(options.batch) * -(-longest // 16),
                    max_num_seqs=max(options.batch),
                    enable_prefix_caching=False,
                )
            )
        return engine

    for batch in options.batch:
        key = f"{model} {batch}x{options.context}"
        row = rows.once(key, lambda batch=batch: measure(built(), model, batch, options, bytes_per_s))
        if row is not None:
            print(
                f"{row['model']:16}{row['batch']:6}{row['context']:9}{row['regime']:>8}{row['gpu_ms']:9.3f}"
                f"{row['host_ms']:9.3f}{row['floor_ms']:10.3f}{row['over_floor']:7.2f}",
                flush=True,
            )


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--batch", nargs="+", type=int, default=(1, 8, 16, 32, 64))
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=60, help="decode steps of each batch")
    options = parser.parse_args()
    rows = begin(options, "decode_steps")
    bytes_per_s = read_bandwidth(options.device)
    print(f"{'model':16} batch  context  regime   GPU ms  host ms  floor ms  ratio")
    for model in options.model:
        measure_model(rows, model, options, bytes_per_s)
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    end(options, rows)


if __name__ == "__main__":
    main()
