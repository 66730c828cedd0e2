"""Division of a model among the GPUs of an instance."""

from __future__ import annotations

from typing import NamedTuple

from blis_py.errors import InputError
from blis_py.models.model_shape import ModelShape


class Layout(NamedTuple):
    """An instance of several GPUs that step together.

    Attention is replicated `attention_dp` times, each over `gpus / attention_dp` ranks with requests and KV
    of their own; routed experts are distributed over `ep` groups of ranks, within which each expert is split.
    `redundant_experts` are further copies of busy ones.
    """

    gpus: int = 1
    attention_dp: int = 1
    ep: int = 1
    redundant_experts: int = 0

    @property
    def attention_tp(self) -> int:
        """Ranks that share the heads of a request."""
        return self.gpus // self.attention_dp

    def experts_per_group(self, shape: ModelShape) -> float:
        """Experts of a rank, copies included."""
        return (shape.experts + self.redundant_experts) / self.ep

    @property
    def expert_tp(self) -> int:
        """Ranks that share an expert."""
        return self.gpus // self.ep

    def __str__(self) -> str:
        dp = f" DP{self.attention_dp}" if self.attention_dp > 1 else ""
        ep = f" EP{self.ep}" if self.ep > 1 else ""
        return f"TP{self.attention_tp}{dp}{ep}"

    def check(self, shape: ModelShape) -> None:
        """Check that the GPUs can be divided so.

        Raises:
            InputError: they cannot.
        """
        for key, parts in (("--attention-dp", self.attention_dp), ("--ep", self.ep)):
            if parts < 1 or self.gpus % parts:
                problem = f"does not divide the {self.gpus} GPUs of an instance"
                fix = f"use one of {', '.join(str(n) for n in _divisors(self.gpus))}"
                raise InputError(problem, key=key, value=parts, fix=fix)
        if self.ep > 1 and not shape.is_moe:
            raise InputError(f"{shape.name} has no experts to distribute", key="--ep", value=self.ep)
        copies = f" and {self.redundant_experts} copies" if self.redundant_experts else ""
        if self.redundant_experts and self.ep == 1:
            problem = "are copies of experts that are not distributed"
            fix = "give --ep, or drop them"
            raise InputError(problem, key="--redundant-experts", value=self.redundant_experts, fix=fix)
        if self.ep > 1 and (shape.experts + self.redundant_experts) % self.ep:
            problem = f"does not divide the {shape.experts} experts{copies} of {shape.name}"
            fix = "use a power of 2, or --redundant-experts"
            raise InputError(problem, key="--ep", value=self.ep, fix=fix)

    def check_blocks(self, shape: ModelShape, engine: str) -> None:
        """Check that ranks hold whole blocks of FP8 scales.

        Raises:
            InputError: they do not, and the engine loads no such model (`create_weights` in `fp8.py` of vLLM
                and of SGLang).
        """
        split = shape.moe_intermediate / self.expert_tp
        narrow = shape.weights.block_scales and 1 <= shape.weights.experts < 2
        if not (shape.moe_layers and narrow) or engine not in _WHOLE_BLOCKS or not split % BLOCK_WIDTH:
            return
        problem = (
            f"leaves a rank {split:g} of the {shape.moe_intermediate:,} of an expert's width: {shape.name} "
            f"has a scale for every {BLOCK_WIDTH}, and {engine} refuses to split them"
        )
        whole = shape.moe_intermediate // BLOCK_WIDTH
        ep = next(n for n in _divisors(self.gpus) if not whole % (self.gpus // n))
        raise InputError(problem, key="--tp", value=self.gpus, fix=f"use fewer GPUs, or --ep {ep}")


BLOCK_WIDTH = 128
"""Rows and columns of weights that share a scale in FP8 with blocks."""
_WHOLE_BLOCKS = {"vllm", "sglang"}


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]
