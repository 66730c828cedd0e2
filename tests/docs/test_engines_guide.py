"""The guide to the comparison with engines' schedulers shows the counts that were measured."""

from __future__ import annotations

from benchmarks.engines.guide import GUIDE, RESULTS, TITLES, kinds_of, renewed, table
from benchmarks.engines.outcome import Row, read_rows
from benchmarks.engines.registry import ENGINES
from benchmarks.engines.wheels import pinned

TEXT = GUIDE.read_text(encoding="utf-8")
ROWS = read_rows(RESULTS)


def test_its_tables_are_those_of_the_counts() -> None:
    """`python -m benchmarks.engines.guide` writes them."""
    assert renewed(TEXT, ROWS) == TEXT
    for package, title in TITLES.items():
        assert table(ENGINES[package], title, ROWS) in TEXT


def test_a_row_is_the_sum_over_seeds_and_loops() -> None:
    rows = [
        Row("sglang", "0.5.9", "no prefix cache, synchronous", 1, 40, 40, 9, 1),
        Row("sglang", "0.5.9", "no prefix cache, overlapped", 1, 40, 40, 9, 1),
        Row("sglang", "0.5.9", "no prefix cache, overlapped", 2, 1000, 1000, 9, 1),
        Row("sglang", "0.5.10", "aborts, overlapped", 1, 10, 9, 9, 1),
        Row("vllm", "0.33.0", "defaults, synchronous", 1, 40, 40, 9, 1),
    ]
    head, _, first, second = table(ENGINES["sglang"], "SGLang", rows).splitlines()
    kinds = kinds_of(ENGINES["sglang"])
    assert head == f"| release | {' | '.join(kinds)} |"
    cells = dict(zip(kinds, [cell.strip() for cell in first.strip("|").split("|")][1:], strict=True))
    assert cells == {**dict.fromkeys(kinds, "–"), "no prefix cache": "1,080"}
    assert second.startswith("| SGLang 0.5.10 |")
    assert "| 9 of 10 |" in second


def test_every_pinned_release_of_vllm_has_a_row() -> None:
    assert all(f"| vLLM {version} |" in TEXT for version in pinned("vllm"))
