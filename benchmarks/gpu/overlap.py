"""Both loops of the engine on the same requests: throughput, bubble, launch lead, host time by segment.

    python benchmarks/gpu/overlap.py [--model NAME...] [--batch N...] [--out DIR]

Dummy weights, one model for both loops and every batch. All requests are there from the beginning and emit as
many tokens, so both loops form the same batches, and whether they emit the same tokens is a row's
`same_tokens`. The bubble is the time between forwards over that between their beginnings; with the overlapped
loop it should be below 2 % where the host's time is below the device's. Rows go to `--out`; what is there
already is not measured again.
"""

from __future__ import annotations

import argparse
import functools
import gc
import random
from dataclasses import dataclass, replace

import torch
from rows import Row, Rows
from timing import begin, common_options, end

from engine.build import build_engine, load, pick_device
from engine.config import EngineConfig
from engine.executor import Model
from engine.models import load_model_config
from engine.models.tokenizer import Tokenizer
from engine.pipeline import summary
from engine.sampling_params import SamplingParams

MODELS = ("qwen3-8b", "qwen3-0.6b")
LOOPS = {"synchronous": False, "overlapped": True}
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Loaded:
    """A model, which all engines share, and what they have in common."""

    config: EngineConfig
    model: Model
    tokenizer: Tokenizer


def loaded(model: str, options: argparse.Namespace) -> Loaded:
    config = EngineConfig(
        model=model,
        load_format="dummy",
        device=options.device,
        max_model_len=options.context + options.steps,
        enable_prefix_caching=False,
    )
    device = pick_device(config.device)
    dtype = getattr(torch, config.dtype_on(device.type))
    return Loaded(config, *load(config, load_model_config(model), device, dtype, None))


def serve(
    shared: Loaded, batch: int, overlapped: bool, options: argparse.Namespace
) -> tuple[Row, list[list[int]]]:
    """One loop; what it took and what it emitted."""
    longest, model = options.context + options.steps, shared.config.model
    config = replace(
        shared.config,
        num_kv_blocks=batch * -(-longest // 16) + 8,
        max_num_seqs=batch,
        async_scheduling=overlapped,
    )
    engine = build_engine(config, model=shared.model, tokenizer=shared.tokenizer)
    rng, vocabulary = random.Random(batch), load_model_config(model).vocab_size
    prompts = [[rng.randrange(vocabulary) for _ in range(options.context)] for _ in range(batch)]
    for tokens in (WARM_UP_TOKENS, options.steps):
        engine.reset()
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        sequences = [engine.add_request(prompt, params) for prompt in prompts]
        while engine.has_unfinished:
            engine.step()
    log = engine.recorder.log()
    elapsed_s = (log.steps["end_ns"][-1] - log.steps["start_ns"][0]) / 1e9
    found = summary(log) | {"output_tokens_per_s": batch * options.steps / elapsed_s}
    return found, [sequence.output_ids for sequence in sequences]


def measure(shared: Loaded, batch: int, options: argparse.Namespace) -> Row:
    """Both loops, one after the other."""
    row: Row = {
        "model": shared.config.model,
        "batch": batch,
        "context": options.context,
        "output": options.steps,
    }
    outputs = []
    for loop, overlapped in LOOPS.items():
        row[loop], own = serve(shared, batch, overlapped, options)
        outputs.append(own)
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    row["same_tokens"] = outputs[0] == outputs[1]
    return row


def measure_all(rows: Rows, options: argparse.Namespace) -> None:
    for model in options.model:
        shared = functools.cache(functools.partial(loaded, model, options))
        for batch in options.batch:
            key = f"{model} {batch}"
            row = rows.once(key, lambda shared=shared, batch=batch: measure(shared(), batch, options))
            if row is not None:
                lines = [
                    f"{row[loop]['step_period_us']:.0f} µs, bubble {row[loop]['bubble']:.1%}"
                    for loop in LOOPS
                ]
                print(f"{key:20} {' -> '.join(lines)}, same tokens: {row['same_tokens']}", flush=True)


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 16, 64])
    parser.add_argument("--context", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=128, help="tokens of an output")
    options = parser.parse_args()
    rows = begin(options, "overlap")
    measure_all(rows, options)
    end(options, rows)


if __name__ == "__main__":
    main()
