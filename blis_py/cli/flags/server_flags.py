"""Flags of SGLang's and TensorRT-LLM's servers that need others beside them; all without a flag here:
`listed_flags`.

Those that have a setting are aliases of it (`--mem-fraction-static`), dashes and underscores alike.
"""

from __future__ import annotations

from typing import Any

from blis_py.cli.flags.flag import OF_SERVERS, Flags

SGLANG_REPLICATED, TRTLLM_REPLICATED = "--enable-dp-attention", "--enable-attention-dp"
REPLICATED = (SGLANG_REPLICATED, TRTLLM_REPLICATED)
"""Attention DP, of as many replicas as `--dp-size` or `--attention-dp` says; of TensorRT-LLM alone, one on
every GPU."""
PROMPTS = "--max-prefill-tokens"
_CHUNKS = ("--chunked-prefill-size", "--max-num-batched-tokens")
_LARGEST_CHUNK = 16384
"""SGLang's largest default of `--chunked-prefill-size`."""


def settings(flags: Flags) -> list[tuple[str, str, Any]]:
    """Settings by flags that only servers have, as (flag, key, value).

    Raises:
        InputError: one that asks for something that is not simulated.
    """
    if OF_SERVERS not in flags:
        return []
    from blis_py.cli.flags import listed_flags  # reads tables, which few command lines need

    return listed_flags.settings(flags)


def prompt_budget(flags: Flags) -> str | None:
    """The note on `--max-prefill-tokens` below the chunk; None where it changes nothing."""
    tokens = flags.get(PROMPTS)
    chunk = next((flags[name] for name in _CHUNKS if name in flags), _LARGEST_CHUNK)
    if tokens is None or tokens >= chunk:
        return None
    return f"{PROMPTS} is not modelled: a step of SGLang takes no prompt beyond {tokens:,} tokens"
