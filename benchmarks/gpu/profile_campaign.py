"""Step-time profiles of whole models on this GPU, one folder each, as `blis engine profile` writes them.

    python benchmarks/gpu/profile_campaign.py [--model NAME...] [--budget SECONDS] [--out DIR]

Random weights and distinct prompts: the time of a step does not depend on what the tokens say. What has been
measured is on disk visit by visit, so a campaign that was broken off goes on where it stopped. With `--out`
there are samples in DIR/profiles alone, to be fitted elsewhere; without, profiles/fits gets them and the fit.
`--device cpu` and `--quick` are for a look at the code path.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from dataclasses import replace

import torch
from rows import Row
from timing import begin, common_options, end

from blis_py.outputs.profile_file import FILE
from engine.build import pick_device
from engine.cli.profile import fit_profile
from engine.config import EngineConfig
from engine.kv_pool import block_bytes
from engine.models import load_model_config
from engine.models.weights import weight_bytes
from engine.profile.provenance import model_name
from engine.profile.run import (
    EFFORTS,
    TOLERATED_DRIFT,
    Effort,
    ProfileOutcome,
    profile,
    suitable,
)

MODELS = (
    "qwen3-8b",
    "llama-3.1-8b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-14b",
    "qwen3-30b-a3b",
    "llada2.0-mini",
)
LONGEST = (32768, 16384)
"""Tokens of the longest sequence measured, where the model has no lower limit: the first if the memory holds
a few of it, else the second."""
_SEQUENCES = 4
_FOR_OTHERS = 0.15
"""Share of the memory for activations, graphs and other users."""


def measure(model: str, options: argparse.Namespace, effort: Effort) -> ProfileOutcome:
    """One model, as far as its budget reaches."""
    longest = options.max_model_len or longest_measured(model, pick_device(options.device))
    longest = min(longest, load_model_config(model).max_position_embeddings)
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
    folder = options.out / "profiles" / model_name(model) if options.out else None
    outcome = profile(config, effort, folder, budget_s=options.budget, progress=tell)
    if folder is not None:
        (folder / FILE).unlink()  # all of it stands in the samples
    return outcome


def longest_measured(model: str, device: torch.device) -> int:
    """Tokens of the longest sequence for the memory there is."""
    config, dtype = load_model_config(model), torch.bfloat16
    if device.type != "cuda":
        return LONGEST[-1]
    free = torch.cuda.mem_get_info(device)[0] * (1 - _FOR_OTHERS) - weight_bytes(config, dtype)
    return LONGEST[_SEQUENCES * LONGEST[0] * block_bytes(config, 1, dtype) > free]


def tell(what: str, done: int, total: int) -> None:
    """A line now and then, for a log file."""
    if done % 100 == 0:
        print(f"  {what}: {done:,} of {total:,}", file=sys.stderr, flush=True)


def row_of(outcome: ProfileOutcome, seconds: float) -> Row:
    """How far a profile is."""
    meta = outcome.samples.meta
    names = ("model", "rounds", "visits", "counts", "drift", "launch_bound", "max_model_len", "num_kv_blocks")
    return {**{name: meta.get(name) for name in names}, "seconds": seconds}


def main() -> None:
    parser = common_options(__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="+", default=MODELS)
    parser.add_argument("--budget", type=float, help="seconds for each model; run it again to go on")
    parser.add_argument("--rounds", type=int, help="repetitions of every shape")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--max-num-seqs", type=int)
    parser.add_argument("--num-kv-blocks", type=int)
    options = parser.parse_args()
    rows = begin(options, "profiles")
    effort = EFFORTS["quick" if options.quick else "full"]
    if options.rounds is not None:
        effort = replace(effort, rounds=options.rounds)
    for model in options.model:
        print(model, file=sys.stderr, flush=True)
        began_s = time.monotonic()
        outcome = measure(model, options, effort)
        row = rows.add(model, row_of(outcome, time.monotonic() - began_s))
        warning = " (!)" if outcome.drift > TOLERATED_DRIFT else ""
        lines = [
            f"{row['rounds']} of {effort.rounds} rounds, {row['visits']} visits of the next",
            f"{row['counts']['steps']:,} steps",
            f"drift {outcome.drift:.1%}{warning}",
            str(outcome.folder),
        ]
        if options.out is None:
            reason = fit_profile(outcome.folder, outcome.samples)
            lines.append("fitted" if reason is None else f"not fitted: {reason}")
        print(f"{model}: {', '.join(lines)}", flush=True)
        gc.collect()
        if options.device == "cuda":
            torch.cuda.empty_cache()
    end(options, rows)


if __name__ == "__main__":
    main()
