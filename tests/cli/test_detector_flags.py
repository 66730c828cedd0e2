"""`--detectors`: saturation detectors after a run, their settings and their report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Blis = Callable[..., tuple[int, str, str]]


def test_the_levels_are_in_the_summary_in_blis_json_and_in_the_table(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    code, out, _ = blis("run", *small, "--detectors", "all", "--saturation-report", report)
    assert code == 0
    levels = json.loads(out)["saturation"]
    assert list(levels) == ["composite", "threshold", "backlog-drift"]
    shown = json.loads(report.read_text())
    assert shown["final"] == levels
    assert {entry["detector"] for entry in shown["trace"]} == set(levels)
    _, out, _ = blis("run", *small, "--detectors", "threshold", "--format", "blis")
    assert json.loads(out)["saturation"] == {"threshold": levels["threshold"]}
    _, out, _ = blis("run", *small, "--detectors", "threshold", "--format", "table")
    assert f"threshold: {levels['threshold']}" in out


def test_settings_change_what_is_found_and_keys_without_effect_are_reported(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    settings = tmp_path / "saturation.yaml"
    settings.write_text(
        "threshold: {threshold_ms: 0.001}\nbacklog_drift: {window_size_sec: 1, peak_ratio: 3}\n"
    )
    code, out, err = blis("run", *small, "--detectors", "all", "--saturation-config", settings)
    assert code == 0
    assert json.loads(out)["saturation"]["threshold"] == "OVERLOADED"
    assert "backlog_drift.peak_ratio has no effect, as in BLIS" in err


def test_settings_of_a_detector_that_does_not_run_are_noted(
    blis: Blis, small: tuple[str, ...], tmp_path: Path
) -> None:
    settings = tmp_path / "saturation.yaml"
    settings.write_text("threshold: {threshold_ms: 5}\n")
    code, _, err = blis("run", *small, "--detectors", "composite", "--saturation-config", settings)
    assert code == 0
    assert "threshold has no effect without --detectors threshold" in err


@pytest.mark.parametrize(
    ("flags", "text", "complaint"),
    [
        (
            "--saturation-final-window 5s",
            "",
            "--saturation-final-window: needs detectors; add --detectors all",
        ),
        ("--detectors treshold", "", "unknown detector (found 'treshold'); did you mean 'threshold'?"),
        ("--detectors all --saturation-final-window soon", "", "must be a positive duration"),
        ("--detectors all", "limit: 5", "limit: unknown key"),
        ("--detectors all", "threshold: 5", "threshold: must be a section"),
        ("--detectors all", "threshold: {ms: 5}", "threshold.ms: unknown key"),
        (
            "--detectors all",
            "threshold: {threshold_ms: 0}",
            "threshold.threshold_ms: must be a number above 0",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(
    blis: Blis, small: tuple[str, ...], tmp_path: Path, flags: str, text: str, complaint: str
) -> None:
    words = flags.split()
    if text:
        (tmp_path / "saturation.yaml").write_text(text)
        words += ["--saturation-config", str(tmp_path / "saturation.yaml")]
    code, out, err = blis("run", *small, *words)
    assert (code, out) == (2, "")
    assert complaint in err
