"""Sparse attention of grouped queries that reads whole blocks (MiniMax-M3): an indexer scores all keys, and
the blocks with the highest scores are read, with those around the query."""

from __future__ import annotations

from blis_py.core.light_dataclass import dataclass
from blis_py.models.hf_config import ConfigFile


@dataclass(frozen=True, slots=True)
class BlockIndexer:
    """Choice of blocks in the layers that have it; other layers read everything."""

    layers: int
    heads: int
    """Queries of the indexer."""
    dim: int
    block_tokens: int
    blocks: int
    """Blocks that a query reads, those around it included."""

    @property
    def top_k(self) -> int:
        """Tokens that a query reads at most."""
        return self.blocks * self.block_tokens

    def parameters(self, hidden: int) -> int:
        """Projections of one layer: queries of its heads, and a key."""
        return hidden * (self.heads + 1) * self.dim

    def cached_bytes(self, element_bytes: int) -> int:
        """Per token and layer, on every rank: a key."""
        return self.dim * element_bytes


def read_blocks(config: ConfigFile, layers: int) -> BlockIndexer | None:
    """None if all attention is to the whole context.

    Raises:
        InputError: the layers are not listed one by one.
    """
    section = config.section("sparse_attention_config")
    if section is None or not section.flag("use_sparse_attention", default=True):
        return None
    which = section.items("sparse_attention_freq")
    if len(which) != layers or not {0, 1}.issuperset(which):
        raise section.error("sparse_attention_freq", f"must be 0 or 1 for each of the {layers} layers")
    around = [section.count(f"sparse_{part}_block", default=0, least=0) for part in ("init", "local")]
    return BlockIndexer(
        layers=sum(which),
        heads=section.count("sparse_num_index_heads"),
        dim=section.count("sparse_index_dim"),
        block_tokens=section.count("sparse_block_size"),
        blocks=section.count("sparse_topk_blocks") + sum(around),
    )
