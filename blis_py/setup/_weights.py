"""Capacity of an instance in relation to others, from its step times."""

from __future__ import annotations

from blis_py.core.features import StepFeatures
from blis_py.latency.base import LatencyModel

_PROMPT_TOKENS, _ANSWER, _RUNNING = 1024, 256, 64
"""Tokens of a request in and out, and requests that decode together."""


def capacity_of(latency: LatencyModel, role: str) -> float:
    """Requests per second of one length at a batch of one size, as far as the role serves them."""
    prompt_ns = latency.step_ns(
        StepFeatures(
            prefill_seqs=1,
            prefill_tokens=_PROMPT_TOKENS,
            prefill_pairs=_PROMPT_TOKENS * (_PROMPT_TOKENS + 1) // 2,
            prefill_prompt_pairs=_PROMPT_TOKENS * (_PROMPT_TOKENS + _PROMPT_TOKENS / 2),
            emitted_rows=1,
        )
    )
    decode_ns = latency.step_ns(
        StepFeatures(
            decode_seqs=_RUNNING,
            decode_kv_tokens=_RUNNING * _PROMPT_TOKENS,
            max_context=_PROMPT_TOKENS,
            emitted_rows=_RUNNING,
        )
    )
    answer_ns = _ANSWER * decode_ns / _RUNNING
    parts_ns = {"prefill": prompt_ns, "decode": answer_ns}
    return 1e9 / parts_ns.get(role, prompt_ns + answer_ns)
