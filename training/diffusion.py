"""Block diffusion: a block of the answer is unmasked over several rounds, block after block.

Training hides a random share of one block and asks for the hidden tokens, with earlier blocks clean and
visible and later ones cut off: exactly what decoding will see (Block Diffusion, arXiv 2503.09573). The
attention mask is block-causal: within a block every position sees every other.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import torch
from torch import Tensor

from engine.tiny.tasks import MAX_TOKENS
from engine.tiny.vocab import EOS, MASK, decode, encode
from training.model import Qwen3
from training.packing import IGNORE, Example

BLOCK = MASK_BLOCK = 32
THRESHOLD = 0.95
CONFIG: dict[str, Any] = {"block_diffusion": {"block_size": BLOCK, "mask_token_id": MASK}}
BATCH = {"arithmetic": 20, "copy": 5, "sort": 6, "record": 4}  # problems of a training step


def example(prompt: str, answer: str, rng: Random) -> Example:
    """Hide some of the answer's tokens in one of its blocks, at least one, and learn these.

    Half of the time they lie anywhere, half of the time they are all from some position on: the states
    that decoding passes through when only the next few tokens are certain. The answer's EOS is repeated
    to the end of its block.
    """
    known = encode(prompt)
    row = [*known, *encode(answer), EOS]
    end = len(row)
    row += [EOS] * (-end % BLOCK)
    start = rng.randrange(len(known) // BLOCK, len(row) // BLOCK) * BLOCK
    row = row[: start + BLOCK]
    first = max(start, len(known))
    if rng.random() < 0.5:
        hidden = set(range(rng.randrange(first, min(end, len(row))), len(row)))
    else:
        hidden = set(rng.sample(range(first, len(row)), rng.randint(1, len(row) - first)))
    ids = [MASK if i in hidden else token for i, token in enumerate(row)]
    return Example(ids, [token if i in hidden else IGNORE for i, token in enumerate(row)])


def unmask(block: Tensor, logits: Tensor) -> Tensor:
    """One round of the LowConfidence rule on a block [32] with its logits [32, V].

    Masked positions whose best token has a probability above the threshold take it, at least the most
    confident one; the mask token itself is never a candidate.
    """
    logits[:, MASK] = -torch.inf
    confidence, best = logits.softmax(-1).max(-1)
    confidence = confidence.masked_fill(block != MASK, -1.0)
    return torch.where((confidence > THRESHOLD) | (confidence == confidence.max()), best, block)


@torch.inference_mode()
def generate(model: Qwen3, prompt: str, max_tokens: int = MAX_TOKENS) -> tuple[str, list[int]]:
    """The answer, and how many rounds each of its blocks took; everything is recomputed in every round."""
    ids, rounds = encode(prompt), []
    known = len(ids)
    while EOS not in ids[known:] and len(ids) < max_tokens:
        start = len(ids) // BLOCK * BLOCK
        row = torch.tensor(ids + [MASK] * (start + BLOCK - len(ids)))
        rounds.append(0)
        while (row == MASK).any():
            logits = model.logits(model(row[None], mask_block=BLOCK)[0, start:])
            row[start:] = unmask(row[start:], logits)
            rounds[-1] += 1
        ids = row.tolist()
    return decode(ids[known:]), rounds


def evaluate(model: Qwen3, prompts: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Answers, and the histogram of denoise rounds per block."""
    answers, histogram = [], Counter[int]()
    for prompt in prompts:
        answer, rounds = generate(model, prompt)
        answers.append(answer)
        histogram.update(rounds)
    return answers, {"rounds_per_block": dict(sorted(histogram.items()))}
