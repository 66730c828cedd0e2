"""Next-token training, and greedy decoding."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

from engine.tiny.tasks import MAX_TOKENS
from engine.tiny.vocab import EOS, PAD, decode, encode
from training.model import Qwen3
from training.packing import IGNORE, Example

CONFIG: dict[str, Any] = {}  # what config.json says beyond the shape
MASK_BLOCK = 1
BATCH = {"arithmetic": 32, "copy": 8, "sort": 7, "record": 4}  # problems of a training step


def example(prompt: str, answer: str, rng: Random) -> Example:
    """Learn the answer's tokens and its EOS; the prompt is given."""
    del rng  # nothing is drawn here
    known, learned = encode(prompt), [*encode(answer), EOS]
    return Example([*known, *learned[:-1]], [IGNORE] * (len(known) - 1) + learned)


@torch.inference_mode()
def generate(model: Qwen3, prompts: list[str], max_tokens: int = MAX_TOKENS) -> list[str]:
    """Greedy answers, recomputing everything for every token; prompt and answer have `max_tokens` at most."""
    rows = [encode(prompt) for prompt in prompts]
    running = list(range(len(rows)))
    while running:
        longest = max(len(rows[index]) for index in running)
        ids = torch.tensor([rows[index] + [PAD] * (longest - len(rows[index])) for index in running])
        last = torch.tensor([len(rows[index]) - 1 for index in running])
        hidden = model(ids)[torch.arange(len(running)), last]
        for index, token in zip(running, model.logits(hidden).argmax(-1).tolist(), strict=True):
            rows[index].append(token)
        running = [index for index in running if rows[index][-1] != EOS and len(rows[index]) < max_tokens]
    return [decode(row[len(encode(prompt)) :]) for row, prompt in zip(rows, prompts, strict=True)]


def evaluate(model: Qwen3, prompts: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Answers, and nothing further to report."""
    return generate(model, prompts), {}
