"""Which kernels a decode step and a prompt spend their time in, by torch's profiler.

    python benchmarks/gpu/kernel_profile.py [--model NAME] [--batch N] [--context N] [--out DIR]

Dummy weights. Decode steps are replayed graphs, as in service; the prompt is one eager step. A row for each
of the two, with the kernels that took the most time: calls and microseconds per step.
"""

from __future__ import annotations

import argparse
from random import Random
from typing import Any

import torch
from rows import Row
from timing import begin, common_options, end
from torch.profiler import ProfilerActivity, profile

from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams

TOKENS, WARM_UPS = 2048, 2
KERNELS = 30
_NAME = 120


def build(options: argparse.Namespace) -> LLMEngine:
    longest = max(options.context + _answer(options), options.prompt + 2)
    return build_engine(
        EngineConfig(
            model=options.model,
            load_format="dummy",
            device=options.device,
            max_model_len=longest,
            max_num_seqs=options.batch,
            num_kv_blocks=(options.batch + 1) * -(-longest // 16),
            max_num_batched_tokens=max(TOKENS, options.prompt),
            cudagraph_capture_sizes=(options.batch,),
            enable_prefix_caching=False,
        )
    )


def _answer(options: argparse.Namespace) -> int:
    """Tokens after which a sequence ends: not before all of them decode, and not while they are watched."""
    prefills = -(-options.batch * options.context // TOKENS)
    return prefills + WARM_UPS + options.steps + 8


def decode(engine: LLMEngine, options: argparse.Namespace) -> Row:
    """Steps in which all sequences decode."""
    add(engine, options.batch, options.context, _answer(options))
    while len(engine.step().tokens) < options.batch:
        pass
    for _ in range(WARM_UPS):
        engine.step()
    found = profiled(engine, options.steps, options.device)
    drain(engine)
    return {"steps": options.steps, "batch": options.batch, "context": options.context, **found}


def prefill(engine: LLMEngine, options: argparse.Namespace) -> Row:
    """One step with one prompt; another one before it warms up."""
    for _ in range(2):
        drain(engine)
        add(engine, 1, options.prompt, 2)
        found = profiled(engine, 1, options.device)
    drain(engine)
    return {"steps": 1, "prompt_tokens": options.prompt, **found}


def add(engine: LLMEngine, count: int, tokens: int, answer: int) -> None:
    rng = Random(count)
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=answer)
    for _ in range(count):
        engine.add_request([rng.randrange(engine.vocab_size) for _ in range(tokens)], params)


def drain(engine: LLMEngine) -> None:
    while engine.has_unfinished:
        engine.step()


def profiled(engine: LLMEngine, steps: int, device: str) -> Row:
    """What so many steps spent their time in."""
    on_gpu = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as report:
        for _ in range(steps):
            engine.step()
    attribute = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    times: list[tuple[float, Any]] = [(getattr(event, attribute), event) for event in report.key_averages()]
    times = sorted((pair for pair in times if pair[0] > 0), key=lambda pair: -pair[0])
    kernels = [
        {"kernel": event.key[:_NAME], "calls": event.count / steps, "us": us / steps}
        for us, event in times[:KERNELS]
    ]
    return {"total_us": sum(us for us, _ in times) / steps, "kernels": kernels}


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen3-8b")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10, help="decode steps")
    options = parser.parse_args()
    rows = begin(options, "kernel_profile")
    torch.manual_seed(0)
    engine = build(options)
    parts = {
        f"{options.model} decode {options.batch}x{options.context}": decode,
        f"{options.model} prompt of {options.prompt}": prefill,
    }
    for key, part in parts.items():
        row = rows.once(key, lambda part=part: part(engine, options))
        if row is not None:
            print(f"{key}: {row['total_us']:.0f} µs a step")
            for kernel in row["kernels"][:12]:
                print(
                    f"  {kernel['us']:9.1f} µs {kernel['calls']:6.1f} calls  {kernel['kernel']}", flush=True
                )
    end(options, rows)


if __name__ == "__main__":
    main()
