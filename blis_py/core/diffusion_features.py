"""The features of a round of block diffusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from blis_py.core.features import Feature, StepFeatures

ROUND_FEATURES: Final = {
    "denoise_blocks": Feature("blocks"),
    "commit_blocks": Feature("blocks"),
    "prefill_blocks": Feature("blocks"),
    "begins_batch": Feature("batches"),
}
"""Features of a round beyond those of other steps; see `FEATURES`."""


@dataclass(slots=True, init=False)
class DiffusionFeatures(StepFeatures):
    """A round as seen by a latency model.

    A block of L tokens on a context of P is a prefill of L tokens, but for the mask: all L positions see
    one another, so it has L*P + L*L query-key pairs, and a prompt chunk has them block by block.
    `emitted_rows` counts the rows through the LM head: positions still masked (or open to edits).
    """

    denoise_blocks: int
    """Blocks being denoised, commits included."""
    commit_blocks: int
    """Those among them whose input is final: the round only writes keys and values."""
    prefill_blocks: int
    """Blocks of prompt."""
    begins_batch: int
    """1 in the first round of a batch, which includes planning and preparation on the host; 0 in the
    others."""

    def __init__(
        self,
        *,
        denoise_blocks: int = 0,
        commit_blocks: int = 0,
        prefill_blocks: int = 0,
        begins_batch: int = 0,
        **common: Any,
    ) -> None:
        """Written out because mypyc neither generates it on top of that of `StepFeatures` nor passes on
        `common`."""
        StepFeatures.__init__(self)
        self.denoise_blocks = denoise_blocks
        self.commit_blocks = commit_blocks
        self.prefill_blocks = prefill_blocks
        self.begins_batch = begins_batch
        for name, value in common.items():
            setattr(self, name, value)

    def names(self) -> tuple[str, ...]:
        return _ATTRIBUTES


_ATTRIBUTES: Final = (*StepFeatures().names(), *ROUND_FEATURES)
