"""From logits to tokens: bitmask, temperature, top-k, top-p, min-p, penalties and log-probabilities.

Top-k, top-p and min-p are each judged on the same distribution, the softmax of the allowed, tempered
logits; a token must pass all three. Each keeps whatever ties with the last token it keeps, so all three
together are one threshold on the logits, and need no sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels import backend
from engine.kernels.reference import sampling as reference

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """How to sample each row of a batch. All tensors have B rows and lie on the logits' device.

    temperature: float32, 0 = greedy. top_k: int32, 0 = off. top_p: float32, 1 = off; min_p: float32, 0 = off.
    seeds, positions: int64, the request's seed and the position in its sequence of the token to sample.
    bitmask: int32 `[B, ceil(V / 32)]` or None; bit `id % 32` of word `id // 32` allows a token.
    The two flags say on the host what the tensors hold, so that the common cases need no look at them:
    `all_greedy` only when every temperature is 0, `filtered=False` only when no row uses top-k, top-p or
    min-p.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor
    positions: Tensor
    bitmask: Tensor | None = None
    all_greedy: bool = False
    filtered: bool = True


def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    """One token for each row of logits `[B, V]` float32; returns ids `[B]` int64.

    Temperature 0 takes the highest logit, else the token is the argmax of logit / temperature + Gumbel noise
    (counter-based, see `engine.kernels.random`) among the kept tokens, which samples their softmax. The
    lowest id wins ties. A row whose bitmask allows nothing yields -1.
    """
    if backend.choose_cuda(logits) == "reference":
        return reference.sample(logits, params)
    from engine.kernels.cuda import sampling

    return sampling.sample(logits, params)


def apply_penalties(
    logits: Tensor,
    prompt_mask: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    presence: Tensor,
    frequency: Tensor,
) -> Tensor:
    """Logits `[B, V]` float32 after the repetition, presence and frequency penalties; a new tensor.

    prompt_mask: `[B, V]` bool, tokens of the prompt; output_counts: `[B, V]` int, how often each token was
    emitted. repetition (1 = off) divides positive and multiplies negative logits of tokens seen in prompt or
    output; presence and frequency (0 = off) subtract once and once per occurrence for emitted tokens. The
    three penalties are `[B]` float32.
    """
    seen = prompt_mask | (output_counts > 0)
    factor = torch.where(seen, repetition.unsqueeze(1), 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    logits = logits - frequency.unsqueeze(1) * output_counts
    return logits - presence.unsqueeze(1) * (output_counts > 0)


def logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest log-probabilities of each row of logits `[B, V]`: values `[B, k]` float32, ids int64."""
    found = torch.log_softmax(logits.float(), dim=-1).topk(k, dim=-1)
    return found.values, found.indices
