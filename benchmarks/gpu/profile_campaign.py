"""Step-time profiles of whole models on this GPU, one folder each, as `blis engine profile` writes them.

    python benchmarks/gpu/profile_campaign.py [--model NAME...] [--budget SECONDS] [--out DIR]

Random weights and distinct prompts: the time of a step does not depend on what the tokens say. What has been
measured is kept, so a campaign that was broken off goes on where it stopped. `--device cpu` and `--quick` are
for a look at the code path.
"""

from __future__ import annotations

import argparse
import gc
import sys
from dataclasses import replace
from pathlib import Path

import torch
from timing import require_cuda

from engine.build import pick_device
from engine.config import EngineConfig
from engine.models import load_model_config
from engine.profile.run import EFFORTS, TOLERATED_DRIFT, Effort, Outcome, fit_profile, profile, suitable

MODELS = (
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-8b",
    "qwen3-14b",
    "llama-3.1-8b",
    "qwen3-30b-a3b",
    "llada2.0-mini",
)
LONGEST = 16384
"""Tokens of the longest sequence measured, where the model has no lower limit."""


def measure(model: str, options: argparse.Namespace, effort: Effort) -> Outcome:
    """One model, as far as its budget reaches."""
    longest = min(options.max_model_len, load_model_config(model).max_position_embeddings)
    settings = suitable(model, pick_device(options.device))
    if options.max_num_seqs is not None:
        settings = suitable(model, pick_device(options.device), options.max_num_seqs)
        settings["max_num_seqs"] = options.max_num_seqs
    config = EngineConfig(
        model=model,
        load_format="dummy",
        device=options.device,
        max_model_len=longest,
        num_kv_blocks=options.num_kv_blocks,
        **settings,
    )
    folder = options.out / model if options.out else None
    return profile(config, effort, folder, budget_s=options.budget, progress=tell)


def tell(what: str, done: int, total: int) -> None:
    """A line now and then, for a log file."""
    if done % 100 == 0:
        print(f"  {what}: {done:,} of {total:,}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--budget", type=float, help="seconds for each model; run it again to go on")
    parser.add_argument("--rounds", type=int, help="repetitions of every shape")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--max-model-len", type=int, default=LONGEST)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--num-kv-blocks", type=int)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="a folder for each model in it; default profiles/fits")
    options = parser.parse_args()
    if options.device == "cuda":
        require_cuda("benchmarks/gpu/profile_campaign.py")
    effort = EFFORTS["quick" if options.quick else "full"]
    if options.rounds is not None:
        effort = replace(effort, rounds=options.rounds)
    for model in options.model:
        print(model, file=sys.stderr, flush=True)
        outcome = measure(model, options, effort)
        meta = outcome.samples.meta
        warning = " (!)" if outcome.drift > TOLERATED_DRIFT else ""
        reason = fit_profile(outcome)
        told = (
            f"{meta['rounds']} of {effort.rounds} rounds",
            f"{meta['counts']['steps']:,} steps",
            f"drift {outcome.drift:.1%}{warning}",
            "fitted" if reason is None else f"not fitted: {reason}",
            str(outcome.folder),
        )
        print(f"{model}: {', '.join(told)}", flush=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
