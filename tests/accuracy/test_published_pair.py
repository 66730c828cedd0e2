"""The published pair of servers, apart and together: predictions in the guide have the measured signs."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "disaggregation.md"
NAMES = ("e2e.mean", "ttft.mean", "ttft.p99", "itl.mean", "itl.p99")
Figures = dict[str, tuple[float, float]]


def row(prompt: int, layout: str) -> Figures:
    """Predicted and measured, by name, of the output of the guide."""
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if re.match(rf" {prompt} {layout} .*\( ", line)]
    found = [float(number) for number in re.findall(r"\d+", line)][1:]
    return {name: (found[2 * i], found[2 * i + 1]) for i, name in enumerate(NAMES)}


@pytest.mark.parametrize("which", [0, 1], ids=["predicted", "measured"])
def test_long_prompts_gain_apart_and_short_ones_trade_ttft_for_the_tail_of_itl(which: int) -> None:
    together, apart = row(8192, "together"), row(8192, "apart")
    for name in ("e2e.mean", "itl.mean"):
        assert apart[name][which] < together[name][which]
    together, apart = row(2048, "together"), row(2048, "apart")
    for name in ("ttft.mean", "ttft.p99"):
        assert apart[name][which] > together[name][which]
    assert apart["itl.p99"][which] < together["itl.p99"][which] / 10


@pytest.mark.slow
def test_the_guide_shows_what_the_script_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GUIDE.parents[1] / "benchmarks" / "accuracy"))
    printed = importlib.import_module("published_pair").table()
    assert f"```text\n{printed}\n```" in GUIDE.read_text(encoding="utf-8")
