"""Offline throughput of the engine beside plain torch, on the same weights, prompts and output lengths.

    python benchmarks/gpu/throughput.py [--model NAME...] [--requests N] [--batch N...] [--out DIR]

All requests are there from the beginning, and each emits as many tokens as it was given, greedily. The
engine batches them as it serves; `plain_generation.py` takes them in order, in static batches. Dummy weights;
lengths are skewed like those of conversations: lognormal, medians of 100 tokens in and 200 out, sigma 1,
between 4 and 1024. Rows go to `--out`; what is there already is not measured again.
"""

from __future__ import annotations

import argparse
import functools
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from plain_generation import generate
from rows import Row, Rows
from timing import begin, common_options, end

from engine.build import build_engine
from engine.config import EngineConfig
from engine.models import build_model, load_model_config
from engine.models.decoder import Decoder
from engine.sampling_params import SamplingParams

MODELS = ("qwen3-8b", "qwen3-0.6b")
SIGMA, SHORTEST = 1.0, 4
MEDIAN_INPUT, MEDIAN_OUTPUT = 100, 200
WARM_UP_REQUESTS, WARM_UP_TOKENS = 8, 16


@dataclass(frozen=True)
class Mix:
    """The requests of a measurement."""

    prompts: list[list[int]]
    lengths: list[int]

    def first(self, requests: int, longest: int) -> Mix:
        """So many of them, with outputs cut to so many tokens."""
        return Mix(self.prompts[:requests], [min(length, longest) for length in self.lengths[:requests]])


def draw_mix(requests: int, longest: int, vocab_size: int, seed: int = 0) -> Mix:
    """Random prompts of lognormal lengths, with lognormal output lengths."""
    rng = np.random.default_rng(seed)

    def lengths(median: int) -> list[int]:
        drawn = rng.lognormal(np.log(median), SIGMA, requests)
        return np.clip(drawn.astype(np.int64), SHORTEST, longest).tolist()

    inputs, outputs = lengths(MEDIAN_INPUT), lengths(MEDIAN_OUTPUT)
    return Mix([rng.integers(vocab_size, size=length).tolist() for length in inputs], outputs)


class EngineRun:
    """The engine, built once for a warm-up and the measurement."""

    def __init__(
        self, decoder: Decoder, name: str, device: str, longest: int, num_kv_blocks: int | None
    ) -> None:
        config = EngineConfig(
            model=name,
            device=device,
            max_model_len=2 * longest,
            num_kv_blocks=num_kv_blocks,
            enable_prefix_caching=False,
        )
        self._engine = build_engine(config, model=decoder)

    def __call__(self, mix: Mix) -> list[list[int]]:
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in mix.lengths]
        sequences = [
            self._engine.add_request(prompt, own) for prompt, own in zip(mix.prompts, params, strict=True)
        ]
        while self._engine.has_unfinished:
            self._engine.step()
        failed = next((sequence for sequence in sequences if sequence.error), None)
        if failed is not None:
            raise RuntimeError(f"{failed.request.id} failed: {failed.error}")
        return [sequence.output_ids for sequence in sequences]


def plain_run(decoder: Decoder, mix: Mix, batch: int) -> list[list[int]]:
    """The same in static batches of `batch` requests, in order."""
    outputs = []
    for start in range(0, len(mix.prompts), batch):
        rows = slice(start, start + batch)
        outputs += generate(decoder, mix.prompts[rows], mix.lengths[rows])
    return outputs


def measure(rows: Rows, name: str, mix: Mix, options: argparse.Namespace) -> list[Row]:
    """The engine first; its KV cache is gone when the others begin."""
    longest, device = options.longest, options.device
    workload = {"requests": len(mix.prompts), "workload": _workload(options)}

    @functools.cache
    def decoder() -> Decoder:
        config = load_model_config(name)
        return build_model(config, device=device, load_format="dummy", path=name, max_positions=2 * longest)

    warm_up = mix.first(WARM_UP_REQUESTS, WARM_UP_TOKENS)

    def engine() -> Row:
        run = EngineRun(decoder(), name, device, longest, None if device == "cuda" else 512)
        run(warm_up)
        return row(name, "engine", mix, timed(partial(run, mix), device)) | workload

    def plain(batch: int) -> Row:
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
        plain_run(decoder(), warm_up, batch)
        try:
            found = timed(partial(plain_run, decoder(), mix, batch), device)
        except torch.OutOfMemoryError:
            found = None
        return row(name, f"plain torch, {batch}", mix, found) | workload

    tries = [("engine", engine), *((f"plain torch, {n}", partial(plain, n)) for n in options.batch)]
    found = [rows.once(f"{name} {system}", measured) for system, measured in tries]
    return [line for line in found if line is not None]


Timed = tuple[float, int, list[list[int]]]
"""Seconds, the most bytes allocated meanwhile, and the outputs."""


def timed(run: Callable[[], list[list[int]]], device: str) -> Timed:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    outputs = run()  # ends with tokens on the host
    elapsed_s = time.perf_counter() - began_s
    return elapsed_s, torch.cuda.max_memory_allocated() if device == "cuda" else 0, outputs


def row(model: str, system: str, mix: Mix, found: Timed | None) -> Row:
    """One way to serve one mix. A static batch that does not fit has no time."""
    elapsed_s, peak_bytes, outputs = found or (None, 0, [])
    if outputs and list(map(len, outputs)) != mix.lengths:
        raise RuntimeError(f"{system} did not emit the requested number of tokens")
    return {
        "model": model,
        "system": system,
        "input_tokens": sum(map(len, mix.prompts)),
        "output_tokens": sum(mix.lengths),
        "elapsed_s": elapsed_s,
        "output_tokens_per_s": sum(mix.lengths) / elapsed_s if elapsed_s else None,
        "peak_bytes": peak_bytes,
        "first_tokens": [tokens[0] for tokens in outputs],
    }


def same_first_tokens(one: Row, other: Row) -> float:
    """Share of requests that begin with the same token; 0 where either has none."""
    pairs = list(zip(one["first_tokens"], other["first_tokens"], strict=False))
    return sum(a == b for a, b in pairs) / len(pairs) if pairs else 0.0


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--batch", nargs="+", type=int, default=[64, 128], help="sizes of static batches")
    parser.add_argument("--longest", type=int, default=1024, help="most tokens of a prompt and of an output")
    options = parser.parse_args()
    rows = begin(options, "throughput")
    print(f"{'model':16}{'system':20}  seconds  out tok/s  engine is  same 1st tokens")
    for name in options.model:
        mix = draw_mix(options.requests, options.longest, load_model_config(name).vocab_size)
        measured = measure(rows, name, mix, options)
        for line in measured:
            speed = line["output_tokens_per_s"] or float("nan")
            seconds = f"{line['elapsed_s']:9.2f}" if line["elapsed_s"] else f"{'no room':>9}"
            print(
                f"{Path(name).name:16}{line['system']:20}{seconds}{speed:11.0f}"
                f"{measured[0]['output_tokens_per_s'] / speed:10.2f}x"
                f"{same_first_tokens(line, measured[0]):16.1%}",
                flush=True,
            )
    end(options, rows)


def _workload(options: argparse.Namespace) -> str:
    return (
        f"lognormal, medians {MEDIAN_INPUT} in and {MEDIAN_OUTPUT} out, sigma {SIGMA:g}, "
        f"{SHORTEST} to {options.longest} tokens, seed 0"
    )


if __name__ == "__main__":
    main()
