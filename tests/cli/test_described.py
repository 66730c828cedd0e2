"""What `help(blis.run)` says, and what else Python's interface does for people."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest

import blis_py as blis
from blis_py.config.models import NAMES
from blis_py.report.notebook import CellProgress, in_notebook


@pytest.mark.parametrize("function", [blis.run, blis.build, blis.replay])
def test_help_lists_every_setting_with_its_meaning(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    lines = text.splitlines()
    entries = dict(line.split(": ", 1) for line in lines if ": " in line and line[0] not in " -")
    said = {NAMES[name] for name in entries if name in NAMES}
    sections = {"latency", "workload", "routing", "admission", "gateway", "disaggregation", "dllm"}
    assert set(NAMES.values()) - said == sections
    assert entries["num_instances"] == "whole number, at least 1, at most 100,000, default 1"
    assert entries["scheduler"].startswith("text, dfs-weight | fcfs")
    for index, line in enumerate(lines):
        if line.partition(": ")[0] in entries and line.partition(":")[0] in NAMES:
            assert lines[index + 1].startswith("    "), f"nothing is said of {line}"


def test_settings_are_in_the_signature_so_that_editors_complete_them() -> None:
    parameters = inspect.signature(blis.run).parameters
    assert NAMES.keys() <= parameters.keys()
    assert parameters["block_size"].default == 16
    assert next(iter(inspect.signature(blis.replay).parameters)) == "trace"


def test_the_defaults_in_the_signature_are_those_of_a_run() -> None:
    parameters = inspect.signature(blis.run).parameters
    config = blis.build(model="qwen3-14b", num_requests=1).config
    for name, key in NAMES.items():
        value: Any = config
        for part in key.split("."):
            value = getattr(value, part)
        default = parameters[name].default
        if default is not None and name not in ("num_requests", "model"):
            assert value == (tuple(default) if isinstance(value, tuple) else default), name
    assert (parameters["max_num_seqs"].default, parameters["async_scheduling"].default) == (1024, True)


def test_a_target_may_stand_by_itself() -> None:
    settings: dict[str, Any] = {"model": "qwen3-14b", "num_requests": 2}
    alone = blis.build(**settings, slo="ttft.p99=500ms", goodput="ttft:500 tpot:50").config
    assert (alone.slo, alone.goodput) == (("ttft.p99=500ms",), ("ttft:500", "tpot:50"))
    assert blis.build(**settings, slo=["ttft.p99=500ms"]).config.slo == alone.slo


def test_progress_is_reported_to_a_callback() -> None:
    lines: list[tuple[int, int]] = []
    simulation = blis.build(model="qwen3-14b", num_requests=300, rate=50)
    simulation.run(progress=lambda ended, total: lines.append((ended, total)))
    assert lines
    assert lines[-1][1] == 300


def test_a_script_is_no_notebook() -> None:
    assert not in_notebook()


def test_a_cell_gets_a_bar_once_it_takes_long_and_keeps_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("IPython")
    shown: list[str] = []

    class Shown:
        def update(self, html: Any) -> None:
            shown.append(html.data)

    def display(html: Any, display_id: bool) -> Shown:
        shown.append(html.data)
        return Shown()

    import IPython.display

    monkeypatch.setattr(IPython.display, "display", display)
    now_s = iter([0.0, 0.5, 1.5, 1.6, 9.0])
    monkeypatch.setattr("blis_py.report.notebook.time.monotonic", lambda: next(now_s))
    with CellProgress() as bar:
        for ended in (1, 2, 3, 4):
            bar(ended, 4)
    assert shown == [
        '<progress value="2" max="4"></progress> 2 of 4 requests, 2 s',
        '<progress value="4" max="4"></progress> 4 of 4 requests, 9 s',
        "",
    ]
    assert "ipykernel" not in sys.modules or not in_notebook()
