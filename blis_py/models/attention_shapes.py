"""Latent attention, with an indexer where it is sparse."""

from __future__ import annotations

from blis_py.core.light_dataclass import dataclass
from blis_py.models.hf_config import ConfigFile

_SCALED = 128
"""Elements of an FP8 cache that share a scale of 4 bytes."""


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of sparse attention: scores of all tokens, in FP8, that select those which
    attention reads. Later layers may reuse the selection of an earlier one."""

    layers: int
    """Layers with an indexer of their own."""
    heads: int
    head_dim: int
    top_k: int
    """Tokens selected for each query."""
    query_rank: int
    weight_bytes: float = 2.0
    """Size of a weight of the queries."""

    @property
    def query_parameters(self) -> int:
        """Projection of one layer's queries, which is quantised as other matrices are."""
        return self.query_rank * self.heads * self.head_dim

    def plain_parameters(self, hidden: int) -> int:
        """One layer's keys, weights of its heads, and norm, which are not quantised when they are loaded."""
        return hidden * (self.head_dim + self.heads) + 2 * self.head_dim

    def parameters(self, hidden: int) -> int:
        """Weights of one layer."""
        return self.query_parameters + self.plain_parameters(hidden)

    @property
    def cached_bytes(self) -> int:
        """Per token and layer, on every rank: a key in FP8 and its scales."""
        return self.head_dim + self.head_dim // _SCALED * 4


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): one latent vector per token is cached for all heads.

    Prompts expand it to keys and values per head; decodes absorb the expansion into queries and outputs.
    """

    query_rank: int
    """Rank of the queries' projection; 0 = a single full matrix."""
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    indexer: Indexer | None = None
    """Indexer of sparse attention; None = attention to all tokens."""

    @property
    def cached_elements(self) -> int:
        """Per token and layer, on every rank: the latent vector and the shared rotary key."""
        return self.kv_rank + self.rope_dim

    def token_bytes(self, layers: int, element_bytes: int) -> int:
        """Bytes that all layers cache for one token.

        In FP8, kernels of sparse attention have scales for the latent vector, and the rotary key in 16 bits.
        """
        indexed = 0 if self.indexer is None else self.indexer.layers * self.indexer.cached_bytes
        return layers * self.entry_bytes(element_bytes) + indexed

    def entry_bytes(self, element_bytes: int) -> int:
        """Bytes that one layer caches for one token, without the key of an indexer."""
        scales = self.kv_rank // _SCALED * 4 + self.rope_dim
        sparse_in_8_bits = self.indexer is not None and element_bytes == 1
        return self.cached_elements * element_bytes + (scales if sparse_in_8_bits else 0)

    def matrices(self, hidden: int, heads: int) -> tuple[int, int, int]:
        """Weights of a layer: projections down and of queries, expansion of keys and values, output."""
        query = heads * (self.nope_dim + self.rope_dim)
        queries = self.query_rank * (hidden + query) if self.query_rank else hidden * query
        down = hidden * self.cached_elements
        expansion = self.kv_rank * heads * (self.nope_dim + self.value_dim)
        return queries + down, expansion, heads * self.value_dim * hidden


def read_latent(config: ConfigFile, layers: int, sparse: bool) -> LatentAttention | None:
    """None without a latent KV cache.

    Args:
        sparse: whether the model's type has an indexer, whatever the config states.
    """
    if config.has("compress_ratios") or config.has("o_lora_rank"):
        return None
    sparse = sparse or config.has("index_topk")
    if not sparse and not config.has("kv_lora_rank"):
        return None
    return LatentAttention(
        query_rank=config.count("q_lora_rank", default=0, least=0),
        kv_rank=config.count("kv_lora_rank"),
        nope_dim=config.count("qk_nope_head_dim"),
        rope_dim=config.count("qk_rope_head_dim"),
        value_dim=config.count("v_head_dim"),
        indexer=_read_indexer(config, layers) if sparse else None,
    )


def _read_indexer(config: ConfigFile, layers: int) -> Indexer:
    return Indexer(
        layers=len(indexed_layers(config, layers)),
        heads=config.count("index_n_heads"),
        head_dim=config.count("index_head_dim"),
        top_k=config.count("index_topk"),
        query_rank=config.count("q_lora_rank"),
    )


def indexed_layers(config: ConfigFile, layers: int) -> list[int]:
    """Indices of the layers with an indexer: those listed, or every n-th from an offset on.

    Raises:
        InputError: `indexer_types` lists other kinds, or not one for each layer.
    """
    kinds = config.texts("indexer_types")
    if kinds:
        if len(kinds) != layers or not {"full", "shared"}.issuperset(kinds):
            raise config.error("indexer_types", f"must be full or shared for each of the {layers} layers")
        return [layer for layer, kind in enumerate(kinds) if kind == "full"]
    every = config.count("index_topk_freq", default=1)
    offset = config.count("index_skip_topk_offset", default=2)
    return [layer for layer in range(layers) if max(layer - offset + 1, 0) % every == 0]
