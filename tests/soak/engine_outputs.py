"""Thousands of outputs of the engine, each equal to that of its request served alone (`make soak-engine`).

Both loops of the autoregressive engine, eager and through captured steps, and block diffusion in both modes,
under random settings; in every second run some forwards fail. The simulator forms the same batches of block
diffusion, too (`--only replayed --outputs 250000`: 10,000 runs). A run follows from its kind and seed, which
are printed with what differs. Exits with 1 if anything does.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(1, str(Path(__file__).parents[1]))
sys.path.insert(1, str(Path(__file__).parents[1] / "engine"))
sys.path.insert(1, str(Path(__file__).parents[1] / "engine" / "runtime"))
sys.path.insert(1, str(Path(__file__).parents[1] / "engine" / "diffusion"))

import stub_blocks
import torch
from mixed_load import Unsteady, assert_as_alone, random_settings, serve_load
from stub_engine import Letters, stub_engine, with_graphs, with_mixed_graphs
from test_diffusion_parity import busy_run

from blis_py.calibrate.parity import replay_steps

FAILING = 0.03
"""Share of the forwards that fail in every second run."""


def autoregressive(seed: int, *, overlap: bool, captured: bool) -> int:
    """One run of many requests; returns the number of outputs that were compared.

    Raises:
        AssertionError: one of them differs, or something has leaked.
    """
    rng = Random(seed)
    model = Unsteady(rng, 0.0)
    engine = stub_engine(model, tokenizer=Letters(), async_scheduling=overlap, **random_settings(rng))
    config = engine.scheduler.config
    if captured:
        with_graphs(engine, tuple(size for size in (1, 2, 3, 8, 16) if size <= config.max_num_seqs))
        with_mixed_graphs(engine, tuple(s for s in (16, 48, 100) if s <= config.max_num_batched_tokens))
    model.share = FAILING * (seed % 2)
    load = serve_load(engine, rng)
    assert_as_alone(load)
    return len(load.sequences)


def diffusion(seed: int, *, fdfo: bool) -> int:
    """The same for block diffusion."""
    rng, algorithm = Random(seed), stub_blocks.CHOICES[seed % len(stub_blocks.CHOICES)]
    model = stub_blocks.StubModel(fail_at=rng.randrange(5, 60) if seed % 2 else -1)
    engine = stub_blocks.stub_engine(
        algorithm,
        model=model,
        fdfo=fdfo,
        reuse_in_place=rng.random() < 0.5,
        num_kv_blocks=rng.choice([10, 24]),
        max_num_seqs=rng.choice([2, 3, 6]),
        max_model_len=160,
    )
    pending, kept = stub_blocks.problems(seed, 40, most=60), {}
    while pending or engine.has_unfinished:
        if pending and rng.random() < 0.5:
            prompt, most = pending.pop()
            sequence = engine.add_request(prompt, stub_blocks.params(most))
            kept[sequence] = stub_blocks.expected(algorithm, prompt, most)[0]
        engine.step()
    stub_blocks.assert_no_leak(engine)
    for sequence, output in kept.items():
        failed = sequence.finish_reason == "error"
        assert sequence.output_ids == (output[: len(sequence.output_ids)] if failed else output)
    return len(kept)


def replayed(seed: int) -> int:
    """A run of block diffusion whose batches the simulator forms, too."""
    rng = Random(seed)
    prefixes = rng.choice(({}, {"prefix_cache": "radix"}, {"enable_prefix_caching": False}))
    engine = busy_run(
        seed,
        25,
        algorithm=rng.choice(stub_blocks.CHOICES),
        fdfo=rng.random() < 0.7,
        reloop=rng.random() < 0.7,
        reuse_in_place=rng.random() < 0.7,
        num_kv_blocks=rng.randint(9, 40),
        max_num_seqs=rng.randint(1, 6),
        max_num_batched_tokens=rng.choice([2048, 320, 256]),
        block_size=rng.choice([32, 32, 64]),
        scheduler=rng.choice(["fcfs", "priority-fcfs"]),
        preemption_policy=rng.choice(["fcfs", "priority"]),
        tick_ns=rng.choice([10, 1000, 10**4, 10**5, 10**6]),
        **prefixes,
    )
    parity = replay_steps(engine.recorder.log())
    assert parity.first is None, parity.first
    return 25


KINDS: dict[str, Callable[[int], int]] = {
    "synchronous": lambda seed: autoregressive(seed, overlap=False, captured=False),
    "synchronous, captured": lambda seed: autoregressive(seed, overlap=False, captured=True),
    "overlapped": lambda seed: autoregressive(seed, overlap=True, captured=False),
    "overlapped, captured": lambda seed: autoregressive(seed, overlap=True, captured=True),
    "diffusion": lambda seed: diffusion(seed, fdfo=False),
    "diffusion, FDFO": lambda seed: diffusion(seed, fdfo=True),
    "replayed diffusion": replayed,
}


@dataclass
class State:
    """How far a search has come."""

    seed: int
    """Of the next runs, one of each kind."""
    outputs: int = 0
    differing: int = 0

    def save(self, path: Path) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outputs", type=int, default=3000)
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    parser.add_argument("--state", type=Path, help="file that keeps how far the search has come")
    parser.add_argument("--seconds", type=float, default=math.inf, help="the longest time it goes on")
    options = parser.parse_args()
    chosen = {kind: run for kind, run in KINDS.items() if options.only in kind}
    went_on = options.state and options.state.exists()
    state = State(**json.loads(options.state.read_text())) if went_on else State(options.seed)
    torch.set_num_threads(1)  # the tensors are tiny
    began_s = time.monotonic()
    while state.outputs < options.outputs and time.monotonic() - began_s < options.seconds:
        for kind, run in chosen.items():
            try:
                state.outputs += run(state.seed)
            except AssertionError as difference:
                state.differing += 1
                print(f"{kind}, seed {state.seed}: {difference}", flush=True)
        state.seed += 1
        if options.state:
            state.save(options.state)
    done = f"{state.outputs:,} outputs up to seed {state.seed}, {state.differing} runs that differ"
    print(f"{done}, {time.monotonic() - began_s:.0f} s")
    return 1 if state.differing else 0


if __name__ == "__main__":
    sys.exit(main())
