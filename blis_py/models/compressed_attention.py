"""Attention over a compressed cache (DeepSeek-V4): keys that serve as values, one for all heads.

Every layer reads the last tokens as they are, and entries that stand for `ratio` tokens each: all of them, or
those that an indexer chooses where they are many. Outputs are projected in groups of heads, by matrices of
low rank.
"""

from __future__ import annotations

from collections.abc import Iterator

from blis_py.core.light_dataclass import dataclass
from blis_py.models.hf_config import ConfigFile

INDEXED_RATIO = 4
"""Ratio of the layers with an indexer."""
_RATIOS = 0, INDEXED_RATIO, 128
_STATE_BYTES = 4
_SCALED = 64
"""Elements in FP8 that share a scale of a byte."""


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """Layers by the number of tokens that an entry stands for; 0 = the window alone."""

    layers: tuple[tuple[int, int], ...]
    """Ratio, and how many layers have it."""
    head_dim: int
    rope_dim: int
    query_rank: int
    output_rank: int
    output_groups: int
    window: int
    index_heads: int
    index_dim: int
    top_k: int
    """Entries that an indexer chooses."""

    @property
    def entry_bytes(self) -> int:
        """An entry in the cache: FP8 with scales, rotary elements in 16 bits (`fp8_ds_mla` of vLLM, and
        SGLang's `DeepSeekV4TokenToKVPool`)."""
        plain = self.head_dim - self.rope_dim
        return plain + 2 * self.rope_dim + plain // _SCALED + 1

    @property
    def index_bytes(self) -> int:
        """The key of an entry for the indexer: FP8 and a scale of 4 bytes."""
        return self.index_dim + 4

    @property
    def token_bytes(self) -> float:
        """Bytes that all layers cache for a token of any age, on every rank."""
        return sum(count * self.layer_bytes(ratio) for ratio, count in self.layers)

    def layer_bytes(self, ratio: int) -> float:
        """The same of one layer; none of a layer with the window alone."""
        indexed = self.index_bytes if ratio == INDEXED_RATIO else 0
        return (self.entry_bytes + indexed) / ratio if ratio else 0.0

    @property
    def sequence_bytes(self) -> int:
        """Bytes that all layers keep of a sequence of any length: windows, and tokens that are not yet
        compressed (keys and their weights in FP32; entries of the indexed layers overlap)."""
        total = 0
        for ratio, count in self.layers:
            total += count * self.window * self.entry_bytes
            dims = self.head_dim + (self.index_dim if ratio == INDEXED_RATIO else 0)
            total += count * self._overlap(ratio) * ratio * 2 * self._overlap(ratio) * dims * _STATE_BYTES
        return total

    def matrices(self, hidden: int, heads: int) -> tuple[int, int]:
        """Weights of a layer: projections down, and all that is divided among ranks."""
        down = hidden * (self.query_rank + self.head_dim)
        queries = self.query_rank * heads * self.head_dim
        return down, queries + self.output_parameters(hidden, heads)

    def output_parameters(self, hidden: int, heads: int) -> int:
        """Both output projections of a layer."""
        return self.output_rank * (heads * self.head_dim + self.output_groups * hidden)

    def small_parameters(self, hidden: int) -> int:
        """Compressors of all layers and their indexers, which every rank holds whole, in 16 bits."""
        return sum(count * size for count, size in self._extra(hidden))

    def extra_parameters(self, ratio: int, hidden: int) -> int:
        """Compressor and indexer of one layer."""
        if not ratio:
            return 0
        dims = self.head_dim
        indexer = 0
        if ratio == INDEXED_RATIO:
            dims += self.index_dim
            indexer = self.index_heads * (self.query_rank * self.index_dim + hidden)
        return hidden * 2 * self._overlap(ratio) * dims + indexer

    def _extra(self, hidden: int) -> Iterator[tuple[int, int]]:
        for ratio, count in self.layers:
            yield count, self.extra_parameters(ratio, hidden)

    @staticmethod
    def _overlap(ratio: int) -> int:
        return 2 if ratio == INDEXED_RATIO else 1


def read_compressed(config: ConfigFile, layers: int) -> CompressedAttention | None:
    """None without compressed layers.

    Raises:
        InputError: a ratio is not one of DeepSeek-V4's, or there are too few.
    """
    if not config.has("compress_ratios"):
        if config.has("o_lora_rank"):
            problem = "missing: how much each layer with compressed attention (DeepSeek-V4) compresses"
            known = ", ".join(map(str, _RATIOS))
            fix = f"list {known} for each of the {layers} layers, as the checkpoint does"
            raise config.error("compress_ratios", problem, fix=fix)
        return None
    ratios = config.items("compress_ratios")[:layers]
    if len(ratios) < layers:
        raise config.error("compress_ratios", f"must name each of the {layers} layers", len(ratios))
    for ratio in ratios:
        if ratio not in _RATIOS:
            known = ", ".join(map(str, _RATIOS))
            raise config.error("compress_ratios", "a ratio that is not modelled", ratio, f"use {known}")
    return CompressedAttention(
        layers=tuple((ratio, ratios.count(ratio)) for ratio in _RATIOS if ratio in ratios),
        head_dim=config.count("head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        query_rank=config.count("q_lora_rank"),
        output_rank=config.count("o_lora_rank"),
        output_groups=config.count("o_groups"),
        window=config.count("sliding_window"),
        index_heads=config.count("index_n_heads"),
        index_dim=config.count("index_head_dim"),
        top_k=config.count("index_topk"),
    )
