"""Sampling of tokens from logits: bitmask, temperature, top-k, top-p, min-p, penalties and log-probabilities.

Top-k, top-p and min-p are each judged on the same distribution, the softmax of the allowed, tempered
logits; a token must pass all three. Each keeps whatever ties with the last token it keeps, so all three
together are one threshold on the logits, and need no sort.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.kernels.op import op
from engine.kernels.random import all_random_words, gumbel, random_words

Tensor = torch.Tensor
FIRST_CANDIDATES = 64


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """Sampling parameters of a batch. All tensors have B rows and are on the logits' device.

    temperature: float32, 0 = greedy. top_k: int32, 0 = off. top_p: float32, 1 = off; min_p: float32, 0 = off.
    seeds, positions: int64, the request's seed and the position in its sequence of the token to sample.
    bitmask: int32 `[B, ceil(V / 32)]` or None; bit `id % 32` of word `id // 32` allows a token.
    The two flags summarise the tensors on the host, so that the common cases need not read them:
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


def apply_bitmask(logits: Tensor, bitmask: Tensor) -> Tensor:
    """Logits `[B, V]` with -inf where bitmask `[B, ceil(V / 32)]` int32 has a zero bit."""
    bits = (bitmask.unsqueeze(-1) >> torch.arange(32, dtype=torch.int32, device=bitmask.device)) & 1
    return logits.masked_fill(bits.flatten(1)[:, : logits.shape[1]] == 0, -torch.inf)


def threshold(falling: Tensor, scale: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The lowest tempered logit that each row keeps, `[B, 1]`.

    falling: `[B, n]`, the n highest tempered logits in falling order; scale: `[B, 1]`, the logarithm of the
    sum of all exponentials. Top-p keeps a token when the mass strictly above it is less than p, so it always
    keeps the most likely. Where the answer lies beyond the n given, it is no higher than the last of them.
    """
    given = falling.shape[1]
    probabilities = torch.exp(falling - scale)
    above = probabilities.cumsum(dim=-1) - probabilities
    kept_by_p = (above < top_p.unsqueeze(1)).sum(dim=-1).clamp_min(1).masked_fill(top_p >= 1, given)
    kept_by_k = top_k.to(torch.int64).masked_fill(top_k <= 0, given)
    last = torch.minimum(kept_by_k, kept_by_p).clamp_max(given) - 1
    by_count = falling.gather(1, last.unsqueeze(1))
    return torch.maximum(by_count, falling[:, :1] + min_p.log().unsqueeze(1))


def candidates(z: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> tuple[Tensor, Tensor]:
    """The kept tokens of each row of z `[B, V]`: tempered logits `[B, n]`, -inf where dropped, and ids.

    The filters usually keep a handful of tokens, so a short list of the highest is tried first. It is long
    enough when it reaches below the threshold in every row.
    """
    scale = z.logsumexp(dim=-1, keepdim=True)
    length = FIRST_CANDIDATES
    while True:
        length = min(length, z.shape[1])
        falling, ids = z.topk(length, dim=-1)
        lowest = threshold(falling, scale, top_k, top_p, min_p)
        if length == z.shape[1] or bool((falling[:, -1:] < lowest).all()):
            return falling.masked_fill(falling < lowest, -torch.inf), ids
        length *= 8


def lowest_argmax(z: Tensor) -> Tensor:
    """Argmax `[B]` of each row of `[B, V]`, the lowest id in a tie; -1 for one of -inf alone, or with NaN."""
    highest, ids = z.max(dim=-1)
    return torch.where(highest > -torch.inf, ids, -1)


@op("cuda")
def sample(logits: Tensor, params: SamplingTensors) -> Tensor:
    """One token for each row of logits `[B, V]` float32; returns ids `[B]` int64.

    Temperature 0 takes the highest logit, else the token is the argmax of logit / temperature + Gumbel noise
    (counter-based, see `engine.kernels.random`) among the kept tokens, which samples their softmax. The
    lowest id wins ties. A row whose bitmask allows nothing, or whose logits are NaN, yields -1.
    """
    if params.bitmask is not None:
        logits = apply_bitmask(logits, params.bitmask)
    if params.all_greedy:
        return lowest_argmax(logits)
    greedy = params.temperature == 0
    z = logits / params.temperature.masked_fill(greedy, 1.0).unsqueeze(1)
    if not params.filtered:
        noise = gumbel(all_random_words(params.seeds, params.positions, logits.shape[1]))
        return lowest_argmax(z + noise.masked_fill_(greedy.unsqueeze(1), 0.0))
    kept, ids = candidates(z, params.top_k.masked_fill(greedy, 1), params.top_p, params.min_p)
    noise = gumbel(random_words(params.seeds, params.positions, ids))
    noisy = kept + noise.masked_fill_(greedy.unsqueeze(1), 0.0)
    highest = noisy.amax(dim=-1, keepdim=True)
    lowest_id = ids.masked_fill(noisy < highest, logits.shape[1]).amin(dim=-1)
    return torch.where(highest.squeeze(1) > -torch.inf, lowest_id, -1)


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
    occurring = prompt_mask | (output_counts > 0)
    factor = torch.where(occurring, repetition.unsqueeze(1), 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    logits = logits - frequency.unsqueeze(1) * output_counts
    return logits - presence.unsqueeze(1) * (output_counts > 0)


def logprobs(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest log-probabilities of each row of logits `[B, V]`: values `[B, k]` float32, ids int64."""
    top = torch.log_softmax(logits.float(), dim=-1).topk(k, dim=-1)
    return top.values, top.indices
