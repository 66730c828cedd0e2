"""Train a tiny model from scratch: `python -m training.train --kind ar --out DIR`.

Deterministic: the same kind, seed, number of steps and torch build on the same kind of CPU give the same
weights, byte for byte. Runs on one thread, because the order of sums depends on their number.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from engine.tiny.tasks import MAX_TOKENS, TASKS, check, make
from training import autoregressive, diffusion
from training.model import Qwen3, save, write_json
from training.muon import Muon
from training.packing import IGNORE, Batch, pack

KINDS: dict[str, ModuleType] = {"ar": autoregressive, "diffusion": diffusion}
STEPS = {"ar": 1500, "diffusion": 3500}
MUON_LR, ADAMW_LR, WARMUP_STEPS = 1e-2, 3e-3, 50


def schedule(step: int, steps: int) -> float:
    """Share of the peak learning rate: linear warm-up, then a cosine down to 1 % at the last step."""
    if step < WARMUP_STEPS:
        return (step + 1) / WARMUP_STEPS
    return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * step / steps))


def token_losses(model: Qwen3, batch: Batch, mask_block: int) -> tuple[Tensor, Tensor]:
    """[N] cross entropy of every token with a label, and [N] the example it belongs to."""
    learned = batch.labels != IGNORE
    hidden = model(batch.ids, mask_block, batch.positions, batch.documents)
    losses = F.cross_entropy(model.logits(hidden[learned]), batch.labels[learned], reduction="none")
    return losses, batch.documents[learned]


def train(
    kind: str,
    *,
    steps: int,
    seed: int,
    batch: dict[str, int] | None = None,
    report_every: int = 100,
) -> tuple[Qwen3, list[float]]:
    """Train for `steps` steps; progress goes to stderr.

    Args:
        kind: a key of `KINDS`.
        steps: optimizer steps; the learning rate's schedule spans them.
        seed: of the weights, the problems and the masks.
        batch: how many fresh problems of each task a step learns from; the kind's own if not given.
        report_every: steps between two lines of progress.

    Returns:
        The model, and the mean loss of every step.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    objective, rng = KINDS[kind], Random(seed)
    tasks = [task for task, count in (batch or objective.BATCH).items() for _ in range(count)]
    model = Qwen3()
    named = dict(model.named_parameters())
    matrices = [name for name, weight in named.items() if weight.dim() == 2 and "embed" not in name]
    muon = Muon(named.pop(name) for name in matrices)
    adamw = torch.optim.AdamW(named.values(), betas=(0.9, 0.98), weight_decay=0.0)
    history, progress = [], Progress(tasks, steps)
    for step in range(steps):
        decay = schedule(step, steps)
        examples = [objective.example(*make(rng, task, held_out=False), rng) for task in tasks]
        losses, owners = token_losses(model, pack(examples, MAX_TOKENS), objective.MASK_BLOCK)
        loss = losses.mean()
        model.zero_grad()
        torch.autograd.backward(loss)
        muon.step(MUON_LR * decay)
        for group in adamw.param_groups:
            group["lr"] = ADAMW_LR * decay
        adamw.step()
        history.append(loss.item())
        progress.add(losses.detach(), owners)
        if (step + 1) % report_every == 0:
            progress.report(step + 1)
    return model.eval(), history


class Progress:
    """Mean loss of each task since the last report, on stderr."""

    def __init__(self, tasks: list[str], steps: int) -> None:
        self.names, self.steps, self.began = list(dict.fromkeys(tasks)), steps, time.perf_counter()
        self.task_of_example = torch.tensor([self.names.index(task) for task in tasks])
        self.sums = torch.zeros(len(self.names))
        self.counts = torch.zeros(len(self.names))

    def add(self, losses: Tensor, owners: Tensor) -> None:
        tasks = self.task_of_example[owners]
        self.sums.index_add_(0, tasks, losses)
        self.counts.index_add_(0, tasks, torch.ones_like(losses))

    def report(self, step: int) -> None:
        means = (self.sums / self.counts).tolist()
        detail = " ".join(f"{name} {mean:.3f}" for name, mean in zip(self.names, means, strict=True))
        done = f"step {step}/{self.steps} {time.perf_counter() - self.began:.0f} s"
        print(done, detail, file=sys.stderr, flush=True)
        self.sums.zero_()
        self.counts.zero_()


def evaluate(kind: str, model: Qwen3, *, seed: int, problems: int) -> dict[str, Any]:
    """Share of right answers on `problems` held-out problems of every task, and the kind's own figures."""
    report: dict[str, Any] = {"problems_per_task": problems, "accuracy": {}}
    for task in TASKS:
        rng = Random(f"{seed} {task}")
        prompts = [make(rng, task, held_out=True)[0] for _ in range(problems)]
        answers, figures = KINDS[kind].evaluate(model, prompts)
        report["accuracy"][task] = sum(map(check, prompts, answers)) / problems
        for name, value in figures.items():
            report.setdefault(name, {})[task] = value
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint")
    parser.add_argument("--steps", type=int, help=f"default: {STEPS}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--problems", type=int, default=200, help="held-out problems of each task")
    options = parser.parse_args()
    steps = STEPS[options.kind] if options.steps is None else options.steps
    if min(steps, options.problems) < 1:
        parser.error("--steps and --problems must be at least 1")
    model, losses = train(options.kind, steps=steps, seed=options.seed)
    training = {
        "kind": options.kind,
        "steps": steps,
        "batch": KINDS[options.kind].BATCH,
        "seed": options.seed,
        "torch": torch.__version__,
        "final_loss": round(sum(losses[-100:]) / len(losses[-100:]), 5),
    } | evaluate(options.kind, model, seed=options.seed, problems=options.problems)
    save(model, options.out, KINDS[options.kind].CONFIG)
    write_json(options.out / "training.json", training)
    print(json.dumps(training))


if __name__ == "__main__":
    main()
