"""Division of a step's time among the requests in it. Exact: the parts add up to the step.

A step has no owner: its sequences share the weights, which are read once, and the launches. So the division
is a convention, based on the prices of hypothetical steps:

- The host's part is the time of the step beyond its GPU time, without time hidden by an overlapped engine.
- Of a request that decodes: the price of the step without any prefill is *decode*, at the batch size it had.
  The rest is *others' prefill*.
- Of a request that computes its prompt: the price of the step if it were alone is *own prefill* (after a
  preemption *computing again*); the addition by the decodes of the step is *others' decode*; the rest, added
  by the prefills of the others, is *others' prefill*.

No part is negative, or larger than the remainder, for any latency model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blis_py.core.features import StepFeatures
from blis_py.latency.base import LatencyModel
from blis_py.ledger.lines import LedgerLine, Times


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """A part of a prompt computed in a step."""

    request: str
    tokens: int
    past: int
    """Tokens before it in the cache."""
    length: int
    """Total length of the prefill."""


def chunk_alone(chunk: PrefillChunk) -> StepFeatures:
    """The step of a chunk and nothing else."""
    tokens, past = chunk.tokens, chunk.past
    return StepFeatures(
        prefill_seqs=1,
        prefill_tokens=tokens,
        prefill_pairs=tokens * past + tokens * (tokens + 1) // 2,
        prefill_kv_tokens=past,
        prefill_prompt_pairs=tokens * (chunk.length + tokens / 2),
        max_context=past,
        emitted_rows=int(past + tokens == chunk.length),
    )


class Divider:
    """Division of the steps of a run into shares of requests.

    Args:
        latency: what prices them; its GPU part is what is divided.
        alone: the step of a chunk and nothing else, where requests are not autoregressive.
    """

    def __init__(
        self, latency: LatencyModel, alone: Callable[[PrefillChunk], StepFeatures] | None = None
    ) -> None:
        self._latency, self._alone = latency, alone or chunk_alone

    def of_decode(self, duration_ns: int, step: StepFeatures, chunks: Sequence[PrefillChunk]) -> Times:
        """Parts for a request that decodes in the step, or denoises a block."""
        gpu_ns = self._gpu_ns(step, duration_ns)
        times = {LedgerLine.HOST: duration_ns - gpu_ns}
        own_ns = self._gpu_ns(self._without(step, chunks), gpu_ns) if chunks else gpu_ns
        return times | {LedgerLine.DECODE: own_ns, LedgerLine.OTHERS_PREFILL: gpu_ns - own_ns}

    def of_prefill(
        self, duration_ns: int, step: StepFeatures, chunks: Sequence[PrefillChunk], own: PrefillChunk
    ) -> Times:
        """Parts for the request of the chunk `own`."""
        gpu_ns = self._gpu_ns(step, duration_ns)
        times = {LedgerLine.HOST: duration_ns - gpu_ns}
        decodes = self._without(step, chunks)
        others = len(chunks) > 1
        alone_ns = with_decodes_ns = gpu_ns
        if others or decodes.seqs:
            alone_ns = self._gpu_ns(self._alone(own), gpu_ns)
        if others:
            with_decodes_ns = alone_ns
            if decodes.seqs:
                with_decodes_ns = max(self._gpu_ns(self._with(decodes, own), gpu_ns), alone_ns)
        return times | {
            LedgerLine.OWN_PREFILL: alone_ns,
            LedgerLine.OTHERS_DECODE: with_decodes_ns - alone_ns,
            LedgerLine.OTHERS_PREFILL: gpu_ns - with_decodes_ns,
        }

    def _gpu_ns(self, step: StepFeatures, most_ns: int) -> int:
        return min(max(self._latency.step(step).gpu_ns, 0), most_ns)

    def _without(self, step: StepFeatures, chunks: Sequence[PrefillChunk]) -> StepFeatures:
        """The step without its prefills."""
        for chunk in chunks:
            step = step - self._alone(chunk)
        return step

    def _with(self, step: StepFeatures, chunk: PrefillChunk) -> StepFeatures:
        return step + self._alone(chunk)
