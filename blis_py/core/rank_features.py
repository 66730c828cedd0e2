"""Features of a step of several ranks: their sums, and those of each rank."""

from __future__ import annotations

from collections.abc import Sequence

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.features import StepFeatures

_LARGEST = "max_context"


@mypyc_attr(acyclic=True, free_list_len=1)
class RankedFeatures(StepFeatures):
    """Sums over the ranks of a group, with the features of each as `ranks`; empty if they are not known."""

    __slots__ = ("ranks",)

    def __init__(self, ranks: Sequence[StepFeatures] = ()) -> None:
        super().__init__()
        self.ranks = ranks
        longest = 0
        for rank in ranks:
            self.prefill_seqs += rank.prefill_seqs
            self.prefill_tokens += rank.prefill_tokens
            self.prefill_pairs += rank.prefill_pairs
            self.prefill_kv_tokens += rank.prefill_kv_tokens
            self.prefill_prompt_pairs += rank.prefill_prompt_pairs
            self.decode_seqs += rank.decode_seqs
            self.decode_kv_tokens += rank.decode_kv_tokens
            self.emitted_rows += rank.emitted_rows
            self.constrained_rows += rank.constrained_rows
            self.shared_kv_tokens += rank.shared_kv_tokens
            self.scanned_requests += rank.scanned_requests
            if rank.max_context > longest or rank.max_context < 0:
                longest = rank.max_context
            if rank.further:
                self.further = {
                    name: self.further.get(name, 0) + value for name, value in rank.further.items()
                }
        self.max_context = longest

    def after(self, steps: int) -> StepFeatures:
        return RankedFeatures([rank.after(steps) for rank in self.ranks])
