"""A check of many kernels goes on where it was stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from engine.kernels.checked import CheckedRows, digest
from engine.kernels.dry_run import Variant
from engine.kernels.gpu import HOPPER
from engine.kernels.promise import Promise

TINY = ["--target", "cuda:90", "--model", "engine/tiny/checkpoints/ar", "--jobs", "1", "--only", "^norm"]


def test_rows_are_there_again_and_a_line_that_was_cut_off_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = CheckedRows(path)
    rows.add("a", "18 registers")
    rows.add("b", "20 registers")
    path.write_text(path.read_text()[:-9])
    again = CheckedRows(path)
    assert (again.get("a"), again.get("b")) == ("18 registers", None)
    again.add("c", "22 registers")
    assert [CheckedRows(path).get(key) for key in "abc"] == ["18 registers", None, "22 registers"]


@dataclass(frozen=True)
class KnownVariant:
    """As much of a variant as its digest reads."""

    data: str = "tile of 128 rows"
    cache_key: str = "source of the kernel"
    module: str = "kernels_of_this_test"
    kernel: str = "_prefill"
    constants: Mapping[str, int] = field(default_factory=dict)

    def function(self) -> SimpleNamespace:
        return SimpleNamespace(cache_key=self.cache_key)


def test_a_row_holds_while_variant_kernel_and_promise_stay_whatever_else_is_selected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = ModuleType("kernels_of_this_test")
    module.promise = lambda kernel, constants: Promise(("HGMMA",))
    module.CONFIGS = [1, 2]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def digest_of(**changes: Any) -> str:
        return digest(cast(Variant, KnownVariant(**changes)), HOPPER)

    before = digest_of()
    module.CONFIGS = [1]
    assert digest_of() == before
    assert digest_of(data="tile of 64 rows") != before
    assert digest_of(cache_key="another source") != before
    module.promise = lambda kernel, constants: Promise(("HGMMA",), max_registers=128)
    assert digest_of() != before


@pytest.mark.slow
@pytest.mark.long
def test_a_kernel_found_right_is_not_compiled_again(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "engine.kernels.aot", *TINY, "--checked", str(tmp_path / "rows")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    first, second = check(), check()
    assert "ok " in first.stdout
    assert "before " not in first.stdout
    assert "ok " not in second.stdout
    assert "2 of them checked before" in second.stderr
    rows = [[line.partition(": ")[2] for line in done.stdout.splitlines()] for done in (first, second)]
    assert sorted(rows[0]) == sorted(rows[1])
