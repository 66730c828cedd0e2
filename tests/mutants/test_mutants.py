"""Mutations change what code does and nothing else, and the tests that import it are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from blocks import HITS, blocks, innermost, instrumented
from mutants import ROOT, wilson
from operators import compiles, mutations
from selection import Selection
from warm import functions, same

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
    found = Selection(ROOT).of("blis_py.cluster.instances.evictable")
    assert found[0] == "tests/cluster/test_gateway_parts.py"
    assert "tests/oracles/test_closed_loop_oracle.py" in found
    assert "tests/mutants/test_mutants.py" not in found
    assert all(Path(ROOT, name).exists() for name in found)
    assert all(
        name.startswith("tests/cluster/")
        for name in Selection(ROOT).of("blis_py.cluster.instances.evictable", own=True)
    )


def test_a_module_that_is_imported_by_its_name_in_a_table_is_found() -> None:
    assert "tests/traces/test_formats.py" in Selection(ROOT).of("blis_py.traces.mooncake", own=True)


BRANCHES = b'''"""Text."""
from __future__ import annotations


def sign(value: int) -> int:
    """Of a number."""
    if value < 0:
        return -1
    elif value:
        return 1
    return 0


class Empty:
    def there(
        self,
    ) -> int: ...
'''


def test_a_mark_in_every_block_changes_nothing_and_shows_what_is_executed() -> None:
    source = instrumented(BRANCHES, 0).decode().replace(f"from {HITS} import HITS as _MUTANT_MARKS", "")
    marks = bytearray(3)
    space: dict[str, Any] = {"_MUTANT_MARKS": marks}
    exec(source, space)
    assert [space["sign"](value) for value in (0, 5)] == [0, 1]
    lines = BRANCHES.decode().splitlines()
    executed = [
        lines[block.first_line - 1].strip()
        for block, mark in zip(blocks(BRANCHES), marks, strict=True)
        if mark
    ]
    assert executed == ["if value < 0:", "return 1"]
    assert space["sign"].__doc__ == "Of a number."


@pytest.mark.parametrize(("line", "first"), [(7, 7), (8, 8), (9, 7), (10, 10), (11, 7), (17, 0), (1, 0)])
def test_a_mutation_belongs_to_the_smallest_block_around_it(line: int, first: int) -> None:
    """A condition of `elif` stands with the statement around it; line 0: none."""
    found = blocks(BRANCHES)
    number = innermost(found, line)
    assert (found[number].first_line if number >= 0 else 0) == first


def test_a_change_inside_a_function_differs_from_one_outside() -> None:
    """Only the first can be made in memory, wherever the lines are then."""
    mutants = {mutation.new: mutation.applied(SOURCE) for mutation in mutations("m", SOURCE)}
    before = compile(SOURCE, "m", "exec")

    def differing(source: bytes) -> list[str] | None:
        after = compile(source, "m", "exec")
        if not same(before, after, but_functions=True):
            return None
        pairs = zip(functions(before), functions(after), strict=True)
        return [old.co_qualname for old, new in pairs if not same(old, new)]

    assert differing(mutants["max"]) == ["Part.take"]
    assert differing(b"\n\n" + SOURCE) == []
    assert differing(mutants["4"]) is None  # a constant of the module
    assert differing(mutants["1"]) is None  # a default
