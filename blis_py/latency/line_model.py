"""Common base of `roofline` and `trained`: decode steps of fixed sequences are a line in Σ context.

A subclass prices tokens, rows and the host's work; these prices are kept. Native code calls functions of this
module without a lookup, methods that an interpreted subclass may replace with one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, final

from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.decode_line import DecodeLine, line_ns, run_along
from blis_py.latency.step_run import StepRun

_ROWS_BITS: Final = 32


@mypyc_attr(allow_interpreted_subclasses=True)
class LineModel(ABC):
    """A sum of the times for tokens, emitted rows, attention and the host; a subclass prices each.

    It sets `_pair_ns` per query-key pair and `_kv_ns` per KV token moved, both for all layers; and, for the
    decodes of steps with prefills, `_mixed_pair_ns` and the pairs of a sequence beyond its context.
    """

    name: str
    provenance: str
    frontend: FrontendDelays
    uses_max_context = False

    def __init__(self) -> None:
        self._pair_ns = self._kv_ns = self._mixed_pair_ns = 0.0
        self._mixed_seq_pairs = 1
        self._mixes_otherwise = False
        """Whether the subclass has a `_mixed_ns` of its own."""
        self._by_tokens: dict[int, float] = {}
        self._by_rows: dict[int, float] = {}
        self._by_seqs: dict[int, int] = {}
        self._decodes: dict[int, DecodeLine] = {}
        """Prices by number of tokens, of emitted rows, of sequences, and by the last two of a pure decode
        step."""

    @abstractmethod
    def _tokens_ns(self, tokens: int) -> float:
        """Everything except attention and LM head, for `tokens` tokens; half a ns added for rounding."""

    @abstractmethod
    def _rows_ns(self, rows: int) -> float:
        """LM head and sampling."""

    @abstractmethod
    def _host_ns(self, seqs: int) -> int: ...

    def _mixed_ns(self, f: StepFeatures) -> float:
        """GPU time of a step with prefills."""
        return mixed_ns(self, f)

    # --- the interface -------------------------------------------------------------------------------

    @final
    def step_ns(self, features: StepFeatures) -> int:
        return step_ns(self, features)

    def step(self, features: StepFeatures) -> StepTime:
        host = host_ns(self, features.prefill_seqs + features.decode_seqs)
        return StepTime(step_ns(self, features) - host, host)

    @final
    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        return decode_run(self, features, steps, start_ns, until_ns)


def step_ns(model: LineModel, f: StepFeatures) -> int:
    """See `LatencyModel`."""
    if not f.prefill_seqs:
        return line_ns(decode_line_of(model, f), f.decode_kv_tokens)
    gpu_ns = int(model._mixed_ns(f) if model._mixes_otherwise else mixed_ns(model, f))
    return (gpu_ns or 1) + host_ns(model, f.prefill_seqs + f.decode_seqs)


def decode_run(model: LineModel, f: StepFeatures, steps: int, start_ns: int, until_ns: int) -> StepRun:
    """See `LatencyModel`."""
    return run_along(decode_line_of(model, f), f.decode_kv_tokens, f.decode_seqs, steps, start_ns, until_ns)


def tokens_ns(model: LineModel, tokens: int) -> float:
    """`_tokens_ns`, computed once."""
    ns = model._by_tokens.get(tokens)
    if ns is None:
        ns = model._by_tokens[tokens] = model._tokens_ns(tokens)
    return ns


def rows_ns(model: LineModel, rows: int) -> float:
    """`_rows_ns`, computed once."""
    ns = model._by_rows.get(rows)
    if ns is None:
        ns = model._by_rows[rows] = model._rows_ns(rows)
    return ns


def host_ns(model: LineModel, seqs: int) -> int:
    """`_host_ns`, computed once."""
    ns = model._by_seqs.get(seqs)
    if ns is None:
        ns = model._by_seqs[seqs] = model._host_ns(seqs)
    return ns


def dense_ns(model: LineModel, f: StepFeatures) -> float:
    """Everything except attention."""
    return tokens_ns(model, f.prefill_tokens + f.decode_seqs) + rows_ns(model, f.emitted_rows)


def prefill_ns(model: LineModel, f: StepFeatures) -> float:
    """Attention of the prefills, compute-bound or bandwidth-bound."""
    compute = model._pair_ns * f.prefill_pairs
    moved = model._kv_ns * (f.prefill_kv_tokens + 2 * f.prefill_tokens)
    return compute if compute > moved else moved


def mixed_ns(model: LineModel, f: StepFeatures) -> float:
    """GPU time of a step with prefills."""
    ns = dense_ns(model, f) + prefill_ns(model, f)
    compute = model._mixed_pair_ns * (f.decode_kv_tokens + model._mixed_seq_pairs * f.decode_seqs)
    moved = model._kv_ns * (f.decode_kv_tokens + 2 * f.decode_seqs)
    return ns + (compute if compute > moved else moved)


def decode_line(model: LineModel, base: float, seqs: int, fixed_ns: int = 0) -> DecodeLine:
    """Attention of decodes in addition to `base`."""
    pair_ns, kv_ns = model._pair_ns, model._kv_ns
    return DecodeLine(base, pair_ns * seqs, pair_ns, kv_ns * 2 * seqs, kv_ns, fixed_ns=fixed_ns)


def decode_line_of(model: LineModel, f: StepFeatures) -> DecodeLine:
    """A pure decode step; its host part is constant."""
    seqs, rows = f.decode_seqs, f.emitted_rows
    key = (seqs << _ROWS_BITS) + rows
    line = model._decodes.get(key)
    if line is None:
        line = model._decodes[key] = decode_line(model, dense_ns(model, f), seqs, host_ns(model, seqs))
    return line
