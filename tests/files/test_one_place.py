"""Whatever a user wrote is read in `blis_py/files`, where it is bounded and checked, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READING = {
    "yaml": ("load", "safe_load", "load_all", "safe_load_all", "parse", "compose", "scan", "unsafe_load"),
    "json": ("load", "loads"),
    "csv": ("reader", "DictReader"),
    "gzip": ("open", "decompress"),
    "np": ("load", "genfromtxt", "loadtxt", "fromfile"),
    "pd": ("read_csv", "read_json", "read_table", "read_parquet"),
}
"""Functions that read, by what their module is called in this code."""
METHODS = ("read_text", "read_bytes")
ALLOWED = {
    "blis_py/cli/completion.py": "start-up files of shells, which it only appends to",
    "blis_py/native/__init__.py": "its own manifest and sources",
    "blis_py/observe/answer.py": "answers of a server",
    "blis_py/observe/_journal.py": "what an interrupted measurement left, whose last line may be cut",
    "blis_py/observe/_server.py": "answers of a server",
    "blis_py/pages/document.py": "its own page",
    "blis_py/pages/opening.py": "tables of a sweep, which pandas opens",
    "blis_py/planning/contents.py": "digests of what others read, and of its own sources",
    "blis_py/planning/emit/proof.py": "digests of what it has written",
    "blis_py/planning/store.py": "what it has kept itself; anything damaged is made again",
    "blis_py/serve/_generation.py": "a mailbox, which is no file",
    "blis_py/serve/killable.py": "/proc/self/statm",
    "blis_py/traces/columns.py": "np.loadtxt on lines that have been read",
    "blis_py/traces/observed.py": "what it has just dumped",
    "blis_py/traces/_steplog_files.py": "Parquet, which pyarrow opens",
    "blis_py/ui/server.py": "its own page, and bodies of bounded size",
    "blis_py/planning/validated.py": "its own accuracy table",
    "engine/cli/serving/checkpoint.py": "what `read_text` has bounded",
    "engine/grammar/vocabulary.py": "what the tokenizer says of itself",
    "engine/kernels/checked.py": "what an interrupted check left, whose last line may be cut",
    "engine/kernels/cuda/build.py": "its own sources",
    "engine/kernels/dry_run.py": "what Triton has just dumped",
    "engine/lifecycle.py": "the output of a request, which is no file",
    "engine/memory.py": "/proc/meminfo, and the limits of the control group",
    "engine/profile/_journal.py": "what a killed measurement left, whose last line may be cut",
    "engine/profile/provenance.py": "/proc/cpuinfo",
    "engine/revision.py": "the revision noted beside its own sources",
    "engine/profile/run.py": "what it has just dumped",
    "engine/tiny/tasks.py": "an answer of a model",
}


def reading_calls(path: Path) -> Iterator[str]:
    """Calls in a module that open or parse a file by themselves."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = getattr(node, "module", None)
            if "yaml" in names or module == "yaml" or (module in ("json", "csv") and node.names):
                yield f"import of {module or 'yaml'}, line {node.lineno}"
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id == "open" and not _writes(node):
            yield f"open, line {node.lineno}"
        if isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            if function.attr in (*READING.get(owner, ()), *READING["pd"], *METHODS):
                yield f"{owner}.{function.attr}, line {node.lineno}"
            if function.attr == "open" and owner not in ("os", "gzip") and not _writes(node):
                yield f".open, line {node.lineno}"


def _writes(call: ast.Call) -> bool:
    """Whether the mode says so: of `open` the second argument, of a path's own the first."""
    place = 1 if isinstance(call.func, ast.Name) else 0
    modes = [*call.args[place : place + 1], *(k.value for k in call.keywords if k.arg == "mode")]
    return any(isinstance(mode, ast.Constant) and str(mode.value)[0] in "wax" for mode in modes)


MODULES = sorted(
    path
    for package in ("blis_py", "engine")
    for path in (ROOT / package).rglob("*.py")
    if "blis_py/files/" not in path.as_posix()
)


@pytest.mark.slow
def test_no_module_reads_files_by_itself() -> None:
    found = {path.relative_to(ROOT).as_posix(): list(reading_calls(path)) for path in MODULES}
    assert len(found) > 200
    assert {name: calls for name, calls in found.items() if calls and name not in ALLOWED} == {}


def test_every_exception_is_still_one() -> None:
    assert [name for name in ALLOWED if not list(reading_calls(ROOT / name))] == []


@pytest.mark.parametrize(
    "code",
    [
        "import yaml\nyaml.safe_load('')",
        "import json\njson.loads('')",
        "from json import loads",
        "import csv\ncsv.DictReader([])",
        "open('x')",
        "path.open()",
        "path.read_text()",
        "gzip.open('x')",
        "pd.read_csv('x')",
    ],
)
def test_a_module_that_did_would_be_found(tmp_path: Path, code: str) -> None:
    (tmp_path / "module.py").write_text(code)
    assert list(reading_calls(tmp_path / "module.py"))
