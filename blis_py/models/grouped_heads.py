"""Heads of grouped-query attention, where layers with a window have others than those without."""

from __future__ import annotations

from blis_py.core.light_dataclass import dataclass
from blis_py.models.hf_config import ConfigFile

_WINDOWED = "attention_other_setting"


@dataclass(frozen=True, slots=True)
class GroupedHeads:
    """Sizes of the whole model, before division by tensor parallelism."""

    heads: int
    kv_heads: int
    head_dim: int
    """Mean of those of keys and of values: projections, cache and products are as large."""

    def parameters(self, hidden: int) -> int:
        """Projections of one layer. Keys that serve as values are loaded twice."""
        return 2 * hidden * (self.heads + self.kv_heads) * self.head_dim


def read_heads(config: ConfigFile, windowed: bool) -> tuple[GroupedHeads, GroupedHeads | None]:
    """Heads of the layers with a window, and of those without; None where all layers are alike.

    Args:
        windowed: whether there are layers with a window.

    Raises:
        InputError: KV heads do not divide the heads, or a size is missing.
    """
    heads = config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", "num_attention_groups", default=heads)
    own = GroupedHeads(heads, kv_heads, _dim(config, heads))
    _check(config, "num_key_value_heads", own)
    if config.has("global_head_dim"):  # Gemma 4
        kv_heads = config.count("num_global_key_value_heads", default=own.kv_heads)
        full = GroupedHeads(heads, kv_heads, config.count("global_head_dim"))
        _check(config, "num_global_key_value_heads", full)
        return own, full
    of_windows = _of_windows(config, own) if windowed else own
    return of_windows, None if of_windows == own else own


def _of_windows(config: ConfigFile, own: GroupedHeads) -> GroupedHeads:
    """Step-3.5 has them in a section, MiMo-V2 under names with a prefix."""
    section, prefix = config.section(_WINDOWED), "swa_"
    if section is not None:
        config, prefix = section, ""
    heads = GroupedHeads(
        heads=config.count(f"{prefix}num_attention_heads", default=own.heads),
        kv_heads=config.count(f"{prefix}num_key_value_heads", "num_attention_groups", default=own.kv_heads),
        head_dim=_mean(config, f"{prefix}head_dim", f"{prefix}v_head_dim", own.head_dim),
    )
    _check(config, f"{prefix}num_key_value_heads", heads)
    return heads


def _dim(config: ConfigFile, heads: int) -> int:
    if config.has("kv_lora_rank"):
        return config.count("head_dim", default=1)
    hidden = config.count("hidden_size")
    if not config.has("head_dim") and hidden % heads:
        raise config.error("num_attention_heads", f"must divide hidden_size ({hidden})", heads)
    return _mean(config, "head_dim", "v_head_dim", hidden // heads)


def _mean(config: ConfigFile, keys: str, values: str, default: int) -> int:
    key_dim = config.count(keys, default=default)
    value_dim = config.count(values, default=key_dim)
    if (key_dim + value_dim) % 2:
        raise config.error(values, f"an odd sum with {keys} is not modelled", value_dim)
    return (key_dim + value_dim) // 2


def _check(config: ConfigFile, key: str, of: GroupedHeads) -> None:
    if of.heads % of.kv_heads:
        raise config.error(key, f"must divide num_attention_heads ({of.heads})", of.kv_heads)
