"""Mutations change what code does and nothing else, and the tests that import it are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from mutants import ROOT, wilson
from operators import compiles, mutations
from selection import Selection

SOURCE = b'''"""Text, 1 < 2."""
LIMIT: int = 3


class Part:
    def take(self, count: int = 0) -> int:
        if not count or count is None:
            raise ValueError(f"{count} < 1")
        self.given += count
        self.note(min(count, LIMIT))
        return -count
'''


def test_every_mutation_is_python_of_another_meaning_with_a_name_of_its_own() -> None:
    found = mutations("m", SOURCE)
    changed = [mutation.applied(SOURCE) for mutation in found]
    assert all(compiles(source) for source in changed)
    assert len(set(changed)) == len({mutation.name for mutation in found}) == len(found)
    assert {(mutation.old, mutation.new) for mutation in found} == {
        ("3", "4"),
        ("0", "1"),
        ("not count or count is None", "not (not count or count is None)"),
        ("or", "and"),
        ("not ", ""),
        ("is", "is not"),
        ("+", "-"),
        ("self.note(min(count, LIMIT))", "pass"),
        ("min", "max"),
        ("-", ""),
    }


@pytest.mark.parametrize(("killed", "of"), [(0, 10), (5, 10), (10, 10), (285, 300)])
def test_the_interval_holds_the_share_and_narrows(killed: int, of: int) -> None:
    low, high = wilson(killed, of)
    assert -1e-12 <= low <= killed / of <= high <= 1 + 1e-12
    wider_low, wider_high = wilson(killed // 5, of // 5)
    assert high - low < wider_high - wider_low


def test_tests_of_the_same_part_come_first_and_those_that_do_not_import_it_not_at_all() -> None:
    found = Selection(ROOT).of("blis_py.cluster.evictable")
    assert found[0] == "tests/cluster/test_gateway_parts.py"
    assert "tests/oracles/test_closed_loop_oracle.py" in found
    assert "tests/mutants/test_mutants.py" not in found
    assert all(Path(ROOT, name).exists() for name in found)
    assert all(
        name.startswith("tests/cluster/")
        for name in Selection(ROOT).of("blis_py.cluster.evictable", own=True)
    )


def test_a_module_that_is_imported_by_its_name_in_a_table_is_found() -> None:
    assert "tests/traces/test_formats.py" in Selection(ROOT).of("blis_py.traces.mooncake", own=True)
