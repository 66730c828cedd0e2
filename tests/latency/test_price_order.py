"""No absurd order of prices, in a sample; all of them are a part of `make soak` (`price_orders.py`)."""

from __future__ import annotations

from random import Random

import pytest
from price_order import GPUS, MODELS, Case, Violation, cases, prices, violations

from blis_py.latency import served

SEEN = [
    Case("mixtral-8x7b", "16", "b200", "sglang", 4),
    Case("mixtral-8x7b", "mxfp4", "h100", "sglang", 2),
    Case("qwen3-30b-a3b", "16", "b200", "vllm", 2),
    Case("qwen3-235b-a22b", "fp8", "h200", "vllm", 8),
    Case("qwen3-235b-a22b", "16", "h100", "trtllm", 8),
    Case("deepseek-v3", "fp8 kv8", "h200", "sglang", 8),
    Case("llama-4-scout", "fp8", "h100", "trtllm", 2),
    Case("llama-3.1-8b", "fp8 blocks", "b200", "vllm", 8),
    Case("gpt-oss-120b", "16", "h200", "trtllm", 1),
    Case("qwen3-0.6b", "nvfp4", "gb300", "trtllm", 4),
    Case("deepseek-v3", "nvfp4", "b200", "trtllm", 4),
    Case("deepseek-v3", "fp8 blocks", "gb300", "sglang", 4),
    Case("qwen3.5-27b", "fp8 blocks", "b200", "vllm", 4),
    Case("llama-3.1-8b", "int4", "gb300", "vllm", 1),
    Case("llama-3.1-8b", "nvfp4", "mi355x", "vllm", 1),
    Case("mixtral-8x22b", "fp8 blocks", "gb200", "trtllm", 8),
    Case("mixtral-8x22b", "int4", "gb300", "trtllm", 8),
]
"""Prices that were in the wrong order by 5 % to 47 times."""
_OF_ALL = 12


def named(case: Case) -> str:
    return "-".join(map(str, case))


@pytest.mark.parametrize("case", SEEN, ids=named)
def test_prices_that_were_in_the_wrong_order_are_not(case: Case) -> None:
    assert prices(case) is not None
    assert list(violations(case)) == []


def test_prices_of_a_sample_are_in_the_right_order() -> None:
    sample = Random(5).sample(list(cases(MODELS, GPUS)), 3 * _OF_ALL)
    priced = [case for case in sample if prices(case) is not None][:_OF_ALL]
    assert len(priced) == _OF_ALL
    assert [found for case in priced for found in violations(case)] == []


def test_without_bounds_they_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Experts in 8 bits by tensor were priced above 16 bits, and H100 at twice H200."""

    def broken(case: Case) -> list[Violation]:
        prices.cache_clear()
        return list(violations(case))

    monkeypatch.setattr(served, "bounded_price", served.PricePlan)
    assert any("slower than 16" in found.relation for found in broken(SEEN[3]))
    assert any("slower than on h200" in found.relation for found in broken(SEEN[0]))
    monkeypatch.undo()
    assert broken(SEEN[3]) == []
