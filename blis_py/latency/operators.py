"""Step time as a sum of operators, each with the efficiency that its kernel shows on this GPU under this
engine.

    step = attention's projections (tokens of a rank) + feed-forward and exchange (tokens of all ranks)
         + attention of chunks + attention of decodes + LM head and sampler + the terms of `EngineTerms`

Operators are listed in `operator_list`, their efficiencies in `surfaces`. Ranks with requests of their own
step together: a step takes as long as the slowest rank, and the experts receive the tokens of all, one of
each rank without work included. A decode step computes the tokens of the CUDA graph that it replays, the
same on all ranks (`graph_sizes`); rows of padding reach no experts of their own (SGLang masks them, others
repeat a token). Without a graph it takes at least the launches of its kernels. On a GPU whose kernels were
not measured the efficiencies of a related one apply to its datasheet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil

import numpy as np
from numpy.typing import NDArray

from blis_py.core.features import StepFeatures
from blis_py.core.rank_features import RankedFeatures
from blis_py.core.request import NEVER_NS
from blis_py.hardware.capacity import check_tp
from blis_py.hardware.gpu import GpuSpec
from blis_py.hardware.layout import Layout
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.engine_terms import EngineTerms, terms_of
from blis_py.latency.kernel_tables import one_chunk
from blis_py.latency.notes import LargestBatch
from blis_py.latency.operator_list import KernelOptions, OperatorList
from blis_py.latency.rank_prices import Line, Load, RankPrices, loads_of, most_seqs
from blis_py.latency.rising import rising, rising_grid, with_work
from blis_py.latency.step_run import StepRun, run_of, run_of_few, step_by_step, within_the_clock
from blis_py.latency.surfaces import Surfaces, launching, load_surfaces
from blis_py.latency.trained import ServerTerms
from blis_py.models.model_shape import ModelShape

Array = NDArray[np.float64]
ENGINES = ("vllm", "sglang", "trtllm")
_LIBRARIES = ("deepep", *(f"{engine}-layers" for engine in ENGINES))
"""Libraries whose kernels engines call where they are set to, and kinds of layers of few models."""
_MEASURED_LAYERS = {True: ("b200",), False: ("h200",)}
"""GPUs with the most kinds of layers, that stand in for a generation."""
_PIECEWISE_TOKENS = {"vllm": 512}
"""Tokens up to which CUDA graphs hold the layers of a step with prompts, too, by an engine's default; the
largest captured size where a server's sizes are known (vllm/config/vllm.py: `max_cudagraph_capture_size` is
that of the piecewise graphs of mixed steps as well)."""
_RELATED = {True: "b200", False: "h100"}
"""Measured GPU whose efficiencies apply to others, by whether these multiply in 4 bits."""
_SERVERS = {True: "b200", False: "h200"}
"""GPU of most servers that the terms were learned on; hosts of others launch as much faster or slower as was
measured."""
_NO_LIMIT = 1 << 62
_FEW_STEPS = 8
"""Runs up to this length are priced step by step, longer ones in numpy."""
_TOKENS = np.unique(np.concatenate([np.arange(1, 17), np.round(2 ** np.arange(4, 20, 0.25))])).astype(float)
_CHUNKS = np.concatenate([[0.0], 2.0 ** np.arange(0, 6), np.round(2.0 ** np.arange(6, 18.5, 0.5))])
_PASTS = np.concatenate([[0.0], 2.0 ** np.arange(6, 21)])
_CONTEXTS = np.concatenate([[0.0], 2.0 ** np.arange(3, 22)])


class Operators:
    """Step times by the formulas above; see `LatencyModel`.

    Args:
        engine: whose kernels: vllm, sglang or trtllm.
        options: kernels that the server is set to.
        server: deviation of one server.
    """

    name = "trained"
    uses_max_context = False

    def __init__(
        self,
        shape: ModelShape,
        gpu: GpuSpec,
        layout: Layout,
        engine: str = "vllm",
        server: ServerTerms | None = None,
        options: KernelOptions | None = None,
        terms: EngineTerms | None = None,
    ) -> None:
        layout.check(shape)
        layout.check_blocks(shape, engine)
        check_tp(shape, layout.attention_tp)
        gpu.require_links(layout.gpus)
        learned, known = surfaces_for(gpu, engine)
        self._learned_here = known
        self._made_of = shape, gpu, layout, engine
        self._options = options, terms
        self._graph_tokens = _PIECEWISE_TOKENS.get(engine, 0)
        self._terms = terms or terms_of(engine, gpu, shape)
        self._server = server or ServerTerms()
        text = (
            f"{engine} on {gpu.name}" if known else f"{engine} on {learned[0].gpu}, datasheet of {gpu.name}"
        )
        self.provenance = (
            f"operators learned on kernels of {text}, {shape.name} on {gpu.name} {layout}"
            f"{self._server.describe()}{_described(options)}"
        )
        self.frontend = FrontendDelays(
            before_enqueue_ns=int(self._terms.first_token_ns), behind_seq_ns=int(self._terms.first_seq_ns)
        )
        hosts = launching(gpu.name, engine, _SERVERS[bool(gpu.fp4_flops)])
        self._launch_ns = self._terms.launch_layer_ns * hosts * shape.layers
        self._sparse = shape.moe_layers > 0
        self._dp = layout.attention_dp
        self._graphs = options.graphs if options else None
        if self._graphs is not None and self._graph_tokens:
            self._graph_tokens = max(self._graphs.sizes, default=0)
        self._list = operators = OperatorList(shape, gpu, layout, learned, options)
        self._largest_graph = max(self._graphs.sizes if self._graphs else (), default=_NO_LIMIT)
        self.outside = LargestBatch(
            self._server.most_seqs, graph=self._largest_graph, launch_ns=self._launch_ns * self._server.scale
        )
        blocks = shape.weights.block_scales and not operators.dispatches
        self._prefill_scale = self._terms.prefill_scale * (self._terms.prefill_block_scale if blocks else 1.0)
        self._rank = _by_tokens(operators.of_attention(_TOKENS))
        self._group = self._mixed_group = _by_tokens(operators.of_feed_forward(_TOKENS))
        if operators.prices_prompts_apart:
            self._mixed_group = _by_tokens(operators.of_feed_forward(_TOKENS, prompts=True))
        self._rows = _by_tokens(operators.of_rows(_TOKENS))
        self._prompts: dict[int, list[Line]] = {}
        """Attention over the cached tokens of each of so many prompts, by the tokens of `_CHUNKS`."""
        self._decodes: dict[int, Line] = {}
        self._ranks = RankPrices(self._rank, self._rows, self._attention_of, self._prompts_ns)
        self._fixed: dict[tuple[int, int], tuple[float, bool]] = {}
        """See `_ranked_fixed`."""

    def beyond(self, longest_tokens: int = 0) -> str:
        """The part of the run outside what was learned, in one line; may be empty."""
        shape, gpu, layout, engine = self._made_of
        return self._terms.beyond(shape, gpu, layout, engine, self._learned_here, self._list.unmeasured)

    @property
    def learned_on(self) -> tuple[str, ...]:
        """Combinations of kind of model, format, GPU and layout that the terms were learned on."""
        return self._terms.learned

    def with_terms(self, terms: EngineTerms) -> Operators:
        """The same model with other terms of its engine."""
        options, _ = self._options
        return Operators(*self._made_of, server=self._server, options=options, terms=terms)

    def on_server(self, server: ServerTerms) -> Operators:
        """The same model for another server."""
        options, terms = self._options
        return Operators(*self._made_of, server=server, options=options, terms=terms)

    def has_experts_by(self, moe_backend: str) -> bool:
        """Whether a kernel of experts, as a server is set to it, has prices."""
        return self._list.has_experts_by(moe_backend.removeprefix("flashinfer_"))

    # --- parts -------------------------------------------------------------------------------------

    def _decode_line(self, seqs: int) -> Line:
        """A pure decode step over the sum of its contexts, if all ranks share each request."""
        line = self._decodes.get(seqs)
        if line is None:
            attention = rising(self._list.of_decodes(np.full(1, float(seqs)), _CONTEXTS))
            tokens, eager = self._replayed(seqs)
            fixed = self._fixed_ns(seqs if self._sparse else tokens, tokens, seqs)
            line = self._decodes[seqs] = Line.of(_CONTEXTS * seqs, self._scaled(attention + fixed, eager))
        return line

    def _replayed(self, seqs: int) -> tuple[int, bool]:
        """Tokens that a decode step computes, and whether it runs without a CUDA graph."""
        if self._graphs is None:
            return seqs, False
        size = self._graphs.of(seqs)
        return size or seqs, not size

    def _ranked_decode_ns(self, loads: Sequence[Load], tokens: int, most: int, steps: Array) -> Array:
        """Decode steps of ranks with requests of their own, after so many more.

        Args:
            tokens: of all ranks, without padding.
            most: decodes of the busiest rank.
        """
        fixed, eager = self._ranked_fixed(most, tokens)
        return self._scaled(self._ranks.slowest_decodes(loads, steps) + fixed, eager)

    def _ranked_decode_step_ns(self, ranks: RankedFeatures) -> float:
        """The first of them."""
        tokens, most, slowest = self._ranks.slowest_decode(ranks)
        fixed, eager = self._ranked_fixed(most, tokens)
        return self._scaled_step(slowest + fixed, eager)

    def _scaled_step(self, ns: float, eager: bool) -> float:
        """A decode step, in the operations of `_scaled`."""
        ns = self._terms.decode_scale * ns
        if eager:
            ns = max(ns, self._launch_ns)
        return (ns + self._terms.decode_step_ns) * self._server.scale

    def _ranked_fixed(self, most: int, tokens: int) -> tuple[float, bool]:
        """A step without its attention, and whether it is eager.

        Args:
            most: decodes of the busiest rank.
        """
        found = self._fixed.get((most, tokens))
        if found is None:
            replayed, eager = self._replayed(most)
            group = tokens if eager or self._sparse else replayed * self._dp
            found = self._fixed[most, tokens] = self._fixed_ns(group, replayed, most), eager
        return found

    def _loads(self, f: StepFeatures) -> tuple[Sequence[Load], int, int]:
        """Decodes of ranks with their contexts, the tokens of all ranks, and the decodes of the busiest."""
        if ranks := _ranks_of(f):
            return loads_of(ranks)
        on_rank = ceil(f.decode_seqs / self._dp)
        return [(on_rank, f.decode_kv_tokens * (on_rank / f.decode_seqs))], f.decode_seqs, on_rank

    def _fixed_ns(self, tokens: int, rank_tokens: float, rank_rows: int) -> float:
        ns = self._rank.value(rank_tokens) + self._group.value(tokens)
        return ns + (self._rows.value(rank_rows) if rank_rows else 0.0)

    def _scaled(self, ns: Array, eager: bool) -> Array:
        terms = self._terms
        ns = terms.decode_scale * ns
        if eager:
            ns = np.maximum(ns, self._launch_ns)
        return np.asarray((ns + terms.decode_step_ns) * self._server.scale)

    def _prompts_ns(self, prompts: int, tokens: float, pairs: float) -> float:
        """Attention of alike prompts that have so many new tokens and query-key pairs in all."""
        prompts = min(prompts, ceil(tokens))
        chunk, past = one_chunk(tokens / prompts, pairs / prompts)
        lines = self._prompts.get(prompts) or self._lines_of(prompts)
        i = min(max(bisect_right(_CHUNK_LIST, chunk) - 1, 0), len(_CHUNK_LIST) - 2)
        weight = (chunk - _CHUNK_LIST[i]) / (_CHUNK_LIST[i + 1] - _CHUNK_LIST[i])
        return float((1 - weight) * lines[i].value(past) + weight * lines[i + 1].value(past))

    def _lines_of(self, prompts: int) -> list[Line]:
        grid = rising_grid(self._list.of_chunk(_CHUNKS[:, None], _PASTS[None, :], float(prompts)))
        lines = self._prompts[prompts] = [Line.of(_PASTS, line) for line in grid]
        return lines

    def _mixed_ns(self, f: StepFeatures) -> float:
        ranks, terms = _ranks_of(f), self._terms
        if ranks:
            tokens, most_tokens, ns = self._ranks.slowest_step(ranks)
            ns += self._mixed_group.value(tokens)
        else:
            tokens = most_tokens = f.tokens
            ns = self._mixed_group.value(tokens) + self._shared_ns(f)
        ns *= self._prefill_scale
        if most_tokens > self._graph_tokens:
            ns = max(ns, self._launch_ns)
        return (ns + terms.prefill_step_ns) * self._server.scale

    def _shared_ns(self, f: StepFeatures) -> float:
        """The same of a rank among which the sequences of a step are divided."""
        dp, prompts, decodes = self._dp, f.prefill_seqs, f.decode_seqs
        if dp == 1:
            return self._ranks.step_ns(f, f.decode_kv_tokens)
        of_rank = ceil(prompts / dp)
        share = of_rank / prompts if prompts else 0.0
        on_rank, rows = ceil(decodes / dp), ceil(f.emitted_rows / dp)
        ns = self._rank.value(f.prefill_tokens * share + on_rank) + (self._rows.value(rows) if rows else 0.0)
        if prompts:
            ns += self._prompts_ns(of_rank, f.prefill_tokens * share, f.prefill_pairs * share)
        if decodes:
            ns += self._ranks.decodes(on_rank).value(on_rank * (f.decode_kv_tokens / decodes))
        return ns

    def _attention_of(self, decodes: int) -> Line:
        if not decodes:  # a rank without: all of its points would be one
            return Line.of(_CONTEXTS, np.zeros_like(_CONTEXTS))
        attention = rising(self._list.of_decodes(np.full(1, float(decodes)), _CONTEXTS))
        return Line.of(_CONTEXTS * decodes, attention)

    def _host_ns(self, f: StepFeatures) -> int:
        server, seqs = self._server, f.seqs
        if ranks := _ranks_of(f):
            seqs = most_seqs(ranks)
        self.outside.record(seqs)
        if seqs > self._largest_graph and not f.prefill_seqs and self._launch_ns:
            self.outside.record_eager(seqs)
        return int(server.gap_ns + server.gap_seq_ns * seqs - server.beyond_ns(seqs) + 0.5)

    def _gpu_ns(self, f: StepFeatures) -> int:
        if f.prefill_seqs:
            return max(int(self._mixed_ns(f)), 1)
        if not f.decode_seqs:
            return 1
        if self._dp > 1:
            if ranks := _ranks_of(f):
                return max(int(self._ranked_decode_step_ns(ranks)), 1)
            return max(int(self._ranked_decode_ns(*self._loads(f), np.zeros(1))[0]), 1)
        return max(int(self._decode_line(f.decode_seqs).value(f.decode_kv_tokens)), 1)

    def _few_decodes_ns(self, f: StepFeatures, steps: int) -> list[float]:
        """Consecutive decode steps, one by one."""
        if self._dp == 1:
            return self._decode_line(f.decode_seqs).each(f.decode_kv_tokens, f.decode_seqs, steps)
        loads, tokens, most = self._loads(f)
        fixed, eager = self._ranked_fixed(most, tokens)
        return [self._scaled_step(ns + fixed, eager) for ns in self._ranks.slowest_each(loads, steps)]

    # --- the interface -----------------------------------------------------------------------------

    def step_ns(self, features: StepFeatures) -> int:
        return self._gpu_ns(features) + self._host_ns(features)

    def step(self, features: StepFeatures) -> StepTime:
        return StepTime(self._gpu_ns(features), self._host_ns(features))

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        if not features.decode_seqs:
            return step_by_step(self.step_ns, features, steps, start_ns, until_ns)
        if steps <= _FEW_STEPS:
            prices_ns = self._few_decodes_ns(features, steps)
            return run_of_few(prices_ns, self._host_ns(features), start_ns, until_ns)
        later = np.arange(steps, dtype=np.float64)
        if self._dp > 1:
            prices = self._ranked_decode_ns(*self._loads(features), later)
        else:
            seqs = features.decode_seqs
            prices = self._decode_line(seqs).values(features.decode_kv_tokens + seqs * later)
        whole = np.maximum(within_the_clock(prices).astype(np.int64), 1)
        return run_of(whole + self._host_ns(features), start_ns, until_ns)


_CHUNK_LIST = _CHUNKS.tolist()


def _by_tokens(ns: Array) -> Line:
    return Line.of(_TOKENS, with_work(_TOKENS, ns))


def _described(options: KernelOptions | None) -> str:
    return f", {options.load.text}" if options and options.load else ""


def _ranks_of(f: StepFeatures) -> RankedFeatures | None:
    """The features with those of each rank; None where ranks have no requests of their own."""
    return f if isinstance(f, RankedFeatures) and f.ranks else None


def surfaces_for(gpu: GpuSpec, engine: str) -> tuple[Sequence[Surfaces], bool]:
    """Surfaces in order of preference, and whether the first ones are of this GPU: the engine's own, those of
    other engines and libraries, those of a related GPU."""
    name = gpu.name
    first = engine, *(other for other in ENGINES if other != engine)
    engines = dict.fromkeys((*first, f"{engine}-layers", *_LIBRARIES))
    own = [found for each in engines if (found := load_surfaces(name, each))]
    related = _RELATED[bool(gpu.fp4_flops)]
    others = [found for each in engines if (found := load_surfaces(related, each))]
    stand_in = [name for name in _MEASURED_LAYERS[bool(gpu.fp4_flops)] if name not in (gpu.name, related)]
    layers = [load_surfaces(name, f"{each}-layers") for name in stand_in for each in (engine, *ENGINES)]
    return (*own, *others, *filter(None, layers)), bool(own)
