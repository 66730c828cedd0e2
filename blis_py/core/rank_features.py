"""Features of a step of several ranks: their sums, and those of each rank."""

from __future__ import annotations

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.features import StepFeatures


@mypyc_attr(acyclic=True, free_list_len=1)
class RankedFeatures(StepFeatures):
    """Sums over the ranks of a group, with the features of each as `ranks`; empty if they are not known.

    Args:
        ranks: features of each rank's own step when it was planned. Ranks that repeat it have contexts longer
            by one token for each step since, see `kv_tokens`.
        since: steps of the group before each of these was planned; None = they are of this step.
        tick: steps of the group before this one.
    """

    __slots__ = ("ranks", "since", "tick")

    def __init__(
        self, ranks: list[StepFeatures] | None = None, since: list[int] | None = None, tick: int = 0
    ) -> None:
        super().__init__()
        self.ranks: list[StepFeatures] = ranks or []
        self.since: list[int] = since or [tick] * len(self.ranks)
        self.tick = tick
        decodes = kv_tokens = rows = constrained = shared = scanned = longest = 0
        for number, rank in enumerate(self.ranks):
            repeated = tick - self.since[number]
            decodes += rank.decode_seqs
            kv_tokens += rank.decode_kv_tokens + repeated * rank.decode_seqs
            rows += rank.emitted_rows
            constrained += rank.constrained_rows
            shared += rank.shared_kv_tokens
            scanned += rank.scanned_requests
            context = rank.max_context
            if context < 0:
                longest = context
            elif context + repeated > longest:
                longest = context + repeated
            if rank.prefill_seqs:
                self._add_prompts(rank)
            if rank.further:
                self._add_further(rank, repeated)
        self.decode_seqs, self.decode_kv_tokens, self.emitted_rows = decodes, kv_tokens, rows
        self.constrained_rows, self.shared_kv_tokens, self.scanned_requests = constrained, shared, scanned
        self.max_context = longest

    def _add_prompts(self, rank: StepFeatures) -> None:
        self.prefill_seqs += rank.prefill_seqs
        self.prefill_tokens += rank.prefill_tokens
        self.prefill_pairs += rank.prefill_pairs
        self.prefill_kv_tokens += rank.prefill_kv_tokens
        self.prefill_prompt_pairs += rank.prefill_prompt_pairs

    def _add_further(self, rank: StepFeatures, repeated: int) -> None:
        now = rank.after(repeated) if repeated else rank
        self.further = {name: self.further.get(name, 0) + value for name, value in now.further.items()}

    def kv_tokens(self, number: int) -> int:
        """KV entries that the decodes of a rank read."""
        rank = self.ranks[number]
        return rank.decode_kv_tokens + (self.tick - self.since[number]) * rank.decode_seqs

    def after(self, steps: int) -> StepFeatures:
        self._require_decodes()
        return RankedFeatures(self.ranks, self.since, self.tick + steps)
