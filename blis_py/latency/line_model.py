"""Common base of `roofline` and `trained`: decode steps of fixed sequences are a line in Σ context."""

from __future__ import annotations

from abc import ABC, abstractmethod

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.decode_line import DecodeLine, run_along
from blis_py.latency.step_run import StepRun


class LineModel(ABC):
    """A sum of the times for tokens, emitted rows, attention and the host; a subclass prices each.

    It sets `_pair_ns` per query-key pair and `_kv_ns` per KV token moved, both for all layers.
    """

    name: str
    provenance: str
    frontend: FrontendDelays
    uses_max_context = False
    _pair_ns: float
    _kv_ns: float

    def __init__(self) -> None:
        self._decodes: dict[tuple[int, int], DecodeLine] = {}

    @abstractmethod
    def _tokens_ns(self, tokens: int) -> float:
        """Everything except attention and LM head, for `tokens` tokens; half a ns added for rounding."""

    @abstractmethod
    def _rows_ns(self, rows: int) -> float:
        """LM head and sampling."""

    @abstractmethod
    def _host_ns(self, seqs: int) -> int: ...

    @abstractmethod
    def _mixed_ns(self, f: StepFeatures) -> float:
        """GPU time of a step with prefills."""

    def _decode_line(self, base: float, seqs: int, host_ns: int = 0) -> DecodeLine:
        pair, kv = self._pair_ns, self._kv_ns
        return DecodeLine(base, pair * seqs, pair, kv * 2 * seqs, kv, fixed_ns=host_ns)

    def _decode(self, seqs: int, rows: int) -> DecodeLine:
        """A pure decode step; its host part is constant."""
        found = self._decodes.get((seqs, rows))
        if found is None:
            base = self._tokens_ns(seqs) + self._rows_ns(rows)
            found = self._decodes[seqs, rows] = self._decode_line(base, seqs, self._host_ns(seqs))
        return found

    def _prefill_ns(self, f: StepFeatures) -> float:
        """Attention of the prefills, compute-bound or bandwidth-bound."""
        compute = self._pair_ns * f.prefill_pairs
        moved = self._kv_ns * (f.prefill_kv_tokens + 2 * f.prefill_tokens)
        return compute if compute > moved else moved

    def _parts_ns(self, f: StepFeatures) -> tuple[int, int]:
        if not f.prefill_seqs:
            line = self._decode(f.decode_seqs, f.emitted_rows)
            return int(line.at(f.decode_kv_tokens)) or 1, line.fixed_ns
        return int(self._mixed_ns(f)) or 1, self._host_ns(f.prefill_seqs + f.decode_seqs)

    # --- the interface -------------------------------------------------------------------------------

    def step_ns(self, features: StepFeatures) -> int:
        gpu_ns, host_ns = self._parts_ns(features)
        return gpu_ns + host_ns

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(*self._parts_ns(features))

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        seqs = features.decode_seqs
        line = self._decode(seqs, features.emitted_rows)
        return run_along(line, features.decode_kv_tokens, seqs, steps, start_ns, until_ns)
