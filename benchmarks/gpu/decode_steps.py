"""Decode steps of whole models beside their memory floor: weights and KV read once at the measured bandwidth.

    python benchmarks/gpu/decode_steps.py [--model NAME...] [--batch N...] [--context N] [--out DIR]

Dummy weights, distinct random prompts. Each batch is decoded by the engine itself; the median of the steps'
GPU times counts (CUDA events around forward and sampling). `--device cpu` runs it without a GPU, for a look
at the code path: it measures nothing worth keeping and writes nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from bandwidth import read_bandwidth
from provenance import provenance
from timing import require_cuda

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.models import load_model_config
from engine.models.weights import weight_bytes
from engine.sampling_params import SamplingParams

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "llama-3.1-8b", "qwen3-14b", "qwen3-30b-a3b")
STEPS = 60
"""Decode steps of each batch; the first third is left out."""


@dataclass(frozen=True)
class Row:
    """One batch of one model. Times in ms."""

    model: str
    batch: int
    context: int
    """Of the median step."""
    regime: str
    bucket: int
    gpu_ms: float
    host_ms: float
    floor_ms: float

    @property
    def over_floor(self) -> float:
        return self.gpu_ms / self.floor_ms


def measure(engine: LLMEngine, model: str, batch: int, context: int, bytes_per_s: float) -> Row:
    """Decodes `batch` prompts of `context` tokens."""
    config, rng = load_model_config(model), random.Random(batch)
    params = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)
    for _ in range(batch):
        engine.add_request([rng.randrange(config.vocab_size) for _ in range(context)], params)
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
    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    moved = weight_bytes(config, dtype) + kv_tokens * config.kv_elements_per_token * dtype.itemsize
    return Row(
        model,
        batch,
        int(kv_tokens / batch),
        log.steps["regime"][steps[0]],
        log.steps["bucket"][steps[0]],
        gpu_ns / 1e6,
        (whole_ns - gpu_ns) / 1e6,
        moved / bytes_per_s * 1e3,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--batch", nargs="+", type=int, default=(1, 8, 16, 32, 64))
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="folder for decode_steps.json")
    options = parser.parse_args()
    if options.device == "cuda":
        require_cuda("benchmarks/gpu/decode_steps.py")
    bytes_per_s = read_bandwidth() if options.device == "cuda" else 1e10
    rows = []
    print(f"{'model':16} batch  context  regime   GPU ms  host ms  floor ms  ratio")
    for model in options.model:
        longest = options.context + STEPS
        engine = build_engine(
            EngineConfig(
                model=model,
                load_format="dummy",
                device=options.device,
                max_model_len=longest,
                num_kv_blocks=None if options.device == "cuda" else max(options.batch) * -(-longest // 16),
                max_num_seqs=max(options.batch),
                enable_prefix_caching=False,
            )
        )
        for batch in options.batch:
            row = measure(engine, model, batch, options.context, bytes_per_s)
            rows.append(row)
            print(
                f"{row.model:16}{row.batch:6}{row.context:9}{row.regime:>8}{row.gpu_ms:9.3f}{row.host_ms:9.3f}"
                f"{row.floor_ms:10.3f}{row.over_floor:7.2f}"
            )
        del engine
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    if options.out and options.device == "cuda":
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"provenance": provenance(), "rows": [asdict(row) for row in rows]}, indent=1)
        (options.out / "decode_steps.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
