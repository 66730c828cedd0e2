"""Near the limit of the KV cache its type alone decides how many requests run; the first lines say so."""

from __future__ import annotations

from typing import Any

from blis_py import api

LOOP: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "num_requests": 64,
    "prompt_tokens": 1000,
    "output_tokens": 200,
    "prompt_tokens_stdev": 0,
    "output_tokens_stdev": 0,
}


def notes(**settings: Any) -> list[str]:
    built = api.build(**{**LOOP, "concurrency": 64, **settings})
    return [note for note in built.notes if "the type of the KV cache decides" in note]


def test_a_closed_loop_that_fits_in_one_type_alone_is_named_with_both_figures() -> None:
    """64 requests of 1,000 + 100 tokens halfway need 70,400: not in 60,000, but in 8 bits."""
    (note,) = notes(num_kv_blocks=60_000 // 16)
    assert "hold about 70,400 tokens at once, 60,000 fit in 16 bits, 120,000 in 8" in note
    assert "--kv-cache-dtype" in note
    (narrow,) = notes(num_kv_blocks=120_000 // 16, kv_cache_dtype="fp8")
    assert "120,000 fit in 8 bits, 60,000 in 16" in narrow


def test_where_both_types_hold_them_or_neither_does_there_is_none() -> None:
    assert notes(num_kv_blocks=200_000 // 16) == []
    assert notes(num_kv_blocks=16_000 // 16) == []
