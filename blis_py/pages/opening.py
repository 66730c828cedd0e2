"""Reports from paths: the content of a folder or file decides its kind."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import load_object
from blis_py.files.opening import read_text
from blis_py.files.packages import extra
from blis_py.files.paths import exists, is_file, is_folder
from blis_py.files.yaml_files import load_mapping
from blis_py.pages.document import html
from blis_py.pages.parts import Document

PLAN, SWEEP, COMPARISON, SUMMARY = "plan.json", "sweep.csv", "compare.json", "summary.json"
_SCRIPTS = ("vllm.sh", "sglang.sh", "llm-d-values.yaml")
_FIX = "name the folder of a run, a comparison, a plan or a sweep, or the JSON of blis calibrate --report"


def report_of(paths: Sequence[str | Path], *, explain: bool = True) -> str:
    """The report of saved results as HTML.

    Args:
        paths: one run, plan, sweep, comparison or calibration; or several runs, to be compared.
        explain: simulate a run again to explain its p99.

    Raises:
        InputError: no result there, or several that are not runs.
    """
    if not paths:
        raise InputError("no result given", key="blis report", fix=_FIX)
    if len(paths) > 1:
        return html(_comparison_of(paths))
    return html(_document(Path(paths[0]), explain))


def _document(path: Path, explain: bool) -> Document:
    if is_file(path):
        return _sweep(path) if path.suffix in (".csv", ".parquet") else _calibration(path)
    if is_folder(path):
        for name, make in _KINDS.items():
            if exists(path / name):
                return make(path)
        if exists(path / "complete.json") or exists(path / SUMMARY):
            return _run(path, explain)
        raise InputError("holds no result", file=path, fix=_FIX)
    raise InputError("no such file or folder", file=path, fix=_FIX)


def _run(folder: Path, explain: bool) -> Document:
    from blis_py.pages.run import report
    from blis_py.report.saved import load

    result = load(folder)
    explanation = None
    if explain and result.summary["cluster"]["ttft_ms"]["count"]:
        from blis_py.ledger.explain import explain as explained

        explanation = explained(folder, what_if=False)
    return report(result, explanation, source=str(folder))


def _comparison_of(paths: Sequence[str | Path]) -> Document:
    from blis_py.comparison.compare import compare
    from blis_py.pages._comparison import report
    from blis_py.report.saved import load

    runs = [load(path) for path in paths]
    names = " ".join(shlex.quote(str(path)) for path in paths)
    return report(compare(*runs).as_dict(), runs, f"blis compare {names}")


def _comparison(folder: Path) -> Document:
    from blis_py.pages._comparison import report

    return _checked(folder / COMPARISON, load_object(folder / COMPARISON), report)


def _plan(folder: Path) -> Document:
    from blis_py.pages._plan import report

    def text(name: str) -> str:
        return read_text(folder / name) if exists(folder / name) else ""

    scripts = {name: text(name) for name in _SCRIPTS if exists(folder / name)}
    answer = text("plan.txt").splitlines()
    return _checked(folder / PLAN, load_object(folder / PLAN), lambda data: report(data, answer, scripts))


def _sweep(path: Path) -> Document:
    with extra("frames", "the report of a sweep"):
        import pandas as pd

    from blis_py.pages._sweep import report

    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (ValueError, OSError, ImportError) as error:
        raise InputError(f"is no table of a sweep: {error}", file=path) from None
    if not len(table) or not len(table.columns):
        raise InputError("is no table of a sweep: it has no rows", file=path)
    space = path.parent / "sweep.yaml"
    known = (load_mapping(space).get("vary") or {}) if exists(space) else {}
    varied = [name for name in table.columns if name in known] or _settings(list(table.columns))
    table = table.where(table.notna(), None)
    name = shlex.quote(str(path))
    command = f"blis plot {name} --out figures\nblis report {name} -o report.html"
    return report(table, varied, command)


def _settings(columns: Sequence[str]) -> list[str]:
    """Columns before the status, which are settings and the seed."""
    before = columns[: columns.index("status")] if "status" in columns else []
    return [name for name in before if name != "seed"]


def _calibration(path: Path) -> Document:
    from blis_py.pages._calibration import report

    name = shlex.quote(path.name)
    command = (
        f"blis calibrate MEASURED --results PREDICTED --report {name}\nblis report {name} -o report.html"
    )
    return _checked(path, load_object(path), lambda data: report(data, command))


def _checked(path: Path, data: Mapping[str, Any], make: Callable[[Mapping[str, Any]], Document]) -> Document:
    """The report; a file of another shape is bad input."""
    try:
        return make(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, InputError):
            raise
        problem = f"is no result that a report can be made of: {type(error).__name__} {error}"
        raise InputError(problem, file=path, fix=_FIX) from None


_KINDS: dict[str, Callable[[Path], Document]] = {
    PLAN: _plan,
    SWEEP: lambda folder: _sweep(folder / SWEEP),
    COMPARISON: _comparison,
}
"""Files by which a folder is recognised."""
