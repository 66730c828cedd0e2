"""Heads of grouped-query attention, for layers of another shape than a model's other layers."""

from __future__ import annotations

from blis_py.core.light_dataclass import dataclass
from blis_py.models.hf_config import ConfigFile


@dataclass(frozen=True, slots=True)
class GroupedHeads:
    """Sizes of the whole model, before division by tensor parallelism."""

    heads: int
    kv_heads: int
    head_dim: int

    def parameters(self, hidden: int) -> int:
        """Projections of one layer. Keys that serve as values are loaded twice."""
        return 2 * hidden * (self.heads + self.kv_heads) * self.head_dim


def read_full_heads(config: ConfigFile, heads: int) -> GroupedHeads | None:
    """Heads of the layers without a window (Gemma 4); None where all layers are alike.

    Raises:
        InputError: KV heads do not divide the heads.
    """
    if not config.has("global_head_dim"):
        return None
    kv_heads = config.count("num_global_key_value_heads", "num_key_value_heads", default=heads)
    if heads % kv_heads:
        problem = f"must divide num_attention_heads ({heads})"
        raise config.error("num_global_key_value_heads", problem, kv_heads)
    return GroupedHeads(heads, kv_heads, config.count("global_head_dim"))
