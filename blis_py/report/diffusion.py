"""Block diffusion in the table of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from blis_py.report._amounts import count, ms, short


def lines(blocks: Mapping[str, Any]) -> Iterable[str]:
    """Lines of the table for its part of a summary."""
    yield f"{count(blocks['committed_blocks'], 'block')} of {short(blocks['steps_per_block'])} rounds"
    yield f"{short(blocks['committed_tokens_per_step'])} tokens per block and round"
    yield f"{ms(blocks['time_per_block_ms']['mean'])} ms per block"
    yield f"{short(blocks['mean_denoise_blocks'])} blocks at work"
    yield f"{blocks['wasted_tokens']:,} tokens past an end"
    yield f"{blocks['idle_block_rounds']:,} block-rounds spent waiting for others"
