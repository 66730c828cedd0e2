"""Throughput of two published services of DeepSeek-V3 with experts over many nodes, pool by pool.

    python benchmarks/accuracy/published_services.py

Prefill and decode groups are priced each by itself, from the operators alone: the hand-over between them is
left out. A group is `Layout(gpus, gpus, gpus, 32)`: attention on every GPU, experts over all, 32 copies of
busy ones. What was not published is assumed, in `GROUPS`, and was fixed before the first run; the results
in `benchmarks/results/published_services.json` are as they came out.

Assumed for all: two halves of a batch take turns, so that a layer takes the longer one of computation and
exchange; an even load of experts (EPLB); kernels of SGLang's tables on H100 (an H800 differs in its links
alone); no time beyond kernels. Exchanges over nodes are those that DeepEP publishes for H800 (its README):
low latency for decodes, in proportion to the tokens of a rank; for prompts its bandwidths, a token going to
four nodes once, in FP8 there and in 16 bits back. The latent cache and attention over it are in 16 bits in
both services: DeepSeek's overview says that core attention and the way back use BF16. In the first run its
cache was in FP8, and kernels were learned on rows that have no place in their tables: `FIRST_RUN`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from blis_py.hardware.gpu import load_gpu
from blis_py.hardware.layout import Layout
from blis_py.latency.operator_list import OperatorList
from blis_py.latency.operators import surfaces_for
from blis_py.models.model_shape import load_model

RESULT = Path(__file__).resolve().parents[1] / "results" / "published_services.json"
COPIES, NODE = 32, 8
LOW_LATENCY_US = {
    8: (77, 114),
    16: (118, 195),
    32: (155, 273),
    64: (173, 314),
    128: (192, 369),
    256: (194, 360),
}
"""Ranks -> dispatch and combine of 128 tokens a rank, hidden size 7,168, 8 experts (DeepEP)."""
NORMAL_GB_PER_S = {16: (43, 43), 32: (58, 57), 64: (51, 50)}
"""Ranks -> bandwidth of a rank's network card in dispatch and combine (DeepEP)."""
NODES_OF_A_TOKEN = 4
GOAL = 0.25
FIRST_RUN = {
    "DeepSeek prefill, EP32": 0.447,
    "DeepSeek decode, EP144": -0.836,
    "SGLang prefill, EP32": 0.091,
    "SGLang decode, EP72": -0.287,
}
"""Errors of the first run."""


@dataclass(frozen=True)
class Group:
    """A pool that steps together, and what was published of it."""

    name: str
    gpus: int
    published_per_node: float
    """Tokens/s of a node: prompts with their cached part, or answers."""
    tokens: int
    """Of a rank in a step: prompt tokens, or sequences that decode."""
    past: int
    """Cached tokens before a prompt's computed ones, or context of a decode."""
    length: int = 0
    """Computed tokens of a prompt; 0 = decodes."""
    kv_bytes: int = 2
    speed: float = 0.0
    """Published tokens/s of a user, instead of a number of sequences: as many as are that fast."""

    @property
    def cached(self) -> float:
        """Share of prompts that is cached."""
        return self.past / (self.past + self.length) if self.length else 0.0


GROUPS = (
    # Mean context in decode 4,989 (published); 56.3 % of prompt tokens cached (published); prompts of 4,600
    # tokens and 8,192 computed tokens of a rank in a step (assumed).
    Group("DeepSeek prefill, EP32", 32, 73_700, 8192, 2590, 2010),
    Group("DeepSeek decode, EP144", 144, 14_800, 0, 4989, speed=21.0),
    # Prompts of 2,000 tokens (published); 16,384 tokens of a rank in a step, 256 sequences that decode,
    # answers of 100 tokens, on average half done (assumed).
    Group("SGLang prefill, EP32", 32, 52_300, 16384, 0, 2000),
    Group("SGLang decode, EP72", 72, 22_300, 256, 2050),
)


def step_s(group: Group, tokens: int) -> float:
    """Duration of a step of two halves that take turns."""
    shape = replace(load_model("deepseek-r1"), kv_dtype_bytes=group.kv_bytes)
    gpu, layout = load_gpu("h100"), Layout(group.gpus, group.gpus, group.gpus, COPIES)
    operators = OperatorList(shape, gpu, layout, surfaces_for(gpu, "sglang")[0])
    half = np.array([tokens / 2.0])
    ns = operators.of_attention(half)[0] + operators.of_computed(half * group.gpus)[0]
    if group.length:
        prompts = half / group.length
        chunk, past = np.array([float(group.length)]), np.array([float(group.past)])
        ns += operators.of_chunk(chunk, past, float(prompts[0]))[0]
        ns += operators.of_rows(np.maximum(prompts, 1.0))[0]
    else:
        ns += operators.of_decodes(half, np.array([float(group.past)]))[0] + operators.of_rows(half)[0]
    exchange_ns = shape.moe_layers * exchange_us(group, tokens / 2.0) * 1e3
    return float(2 * max(ns, exchange_ns)) / 1e9


def exchange_us(group: Group, tokens: float) -> float:
    """Dispatch and combine of a layer."""
    if not group.length:
        ranks = np.log2(list(LOW_LATENCY_US))
        us = [
            np.interp(np.log2(group.gpus), ranks, column)
            for column in zip(*LOW_LATENCY_US.values(), strict=True)
        ]
        return float(sum(us)) * tokens / 128
    there, back = NORMAL_GB_PER_S[group.gpus]
    moved = tokens * NODES_OF_A_TOKEN * 7168 / 1e3
    return moved / there + 2 * moved / back


def per_node(group: Group) -> float:
    """Tokens/s of a node."""
    tokens = group.tokens or sequences_at(group)
    return NODE * tokens / (1 - group.cached) / step_s(group, tokens)


def sequences_at(group: Group) -> int:
    """Sequences of a rank that decode at the published speed."""
    counts = np.arange(2, 1025, 2)
    slow = [step_s(group, int(count)) > 1 / group.speed for count in counts]
    return int(counts[int(np.argmax(slow)) - 1])


def main() -> None:
    rows = []
    for group in GROUPS:
        found = per_node(group)
        error = found / group.published_per_node - 1
        figures = {"tokens_per_s_and_node": round(found), "error": round(error, 3)}
        rows.append({"group": group.name, **figures, "first_run": FIRST_RUN[group.name]})
        published = f"published {group.published_per_node:,.0f}"
        print(f"{group.name}: {found:,.0f} tokens/s a node, {published}: {error:+.1%}")
    RESULT.write_text(json.dumps({"goal": GOAL, "groups": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
