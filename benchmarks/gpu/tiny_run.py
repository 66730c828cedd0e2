"""A few short answers of the tiny trained models, for tools that slow everything down a hundredfold.

    python benchmarks/gpu/tiny_run.py [--device cpu] [--model autoregressive|diffusion...]

Every kernel of a forward runs: prompts, chunks over a cached prefix, decodes, sampling with filters, and
rounds of block diffusion; eagerly, so that a tool can name the kernel. Exits with 1 where no answer is right.
"""

from __future__ import annotations

import argparse
import sys
from random import Random

from engine.build import build_engine
from engine.config import EngineConfig
from engine.diffusion.build import build_diffusion_engine
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.settings import DllmSettings
from engine.sampling_params import SamplingParams
from engine.tiny import checkpoint
from engine.tiny.tasks import MAX_TOKENS, check, make

GREEDY = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
FILTERED = SamplingParams(temperature=0.7, top_k=20, top_p=0.9, max_tokens=8, seed=1)


def autoregressive(device: str, problems: list[str]) -> int:
    """Right answers."""
    config = EngineConfig(
        model=str(checkpoint("ar")),
        device=device,
        enforce_eager=True,
        max_model_len=192,
        max_num_seqs=4,
        max_num_batched_tokens=48,
        num_kv_blocks=64,
    )
    engine = build_engine(config)
    sequences = [engine.add_request(problem, GREEDY) for problem in problems]
    engine.add_request(problems[0], FILTERED)
    while engine.has_unfinished:
        engine.step()
    return sum(check(problem, sequence.text()) for problem, sequence in zip(problems, sequences, strict=True))


def diffusion(device: str, problems: list[str]) -> int:
    """Right answers."""
    config = EngineConfig(
        model=str(checkpoint("diffusion")),
        device=device,
        enforce_eager=True,
        block_size=32,
        max_model_len=192,
        max_num_seqs=4,
        num_kv_blocks=32,
    )
    engine = build_diffusion_engine(config, DllmSettings(LowConfidence()))
    sequences = [engine.add_request(problem, GREEDY) for problem in problems]
    while engine.has_unfinished:
        engine.step()
    return sum(check(problem, sequence.text()) for problem, sequence in zip(problems, sequences, strict=True))


KINDS = {"autoregressive": autoregressive, "diffusion": diffusion}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--model", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--problems", type=int, default=3)
    options = parser.parse_args()
    rng, right = Random(0), 0
    for name in options.model:
        problems = [make(rng)[0] for _ in range(options.problems)]
        found = KINDS[name](options.device, problems)
        print(f"{name}: {found} of {len(problems)} right", flush=True)
        right += found
    return int(right == 0)


if __name__ == "__main__":
    sys.exit(main())
