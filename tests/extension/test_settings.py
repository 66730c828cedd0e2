"""A setting is one registration, and a policy from outside of the package brings its own in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from blis_py.cli.flags.configure import overrides
from blis_py.cli.flags.help import meaning
from blis_py.cli.flags.options import SETTINGS
from blis_py.cli.flags.registered import flags_of
from blis_py.config.loader import load_config
from blis_py.config.models import NAMES, SECTIONS, RunConfig
from blis_py.core.config import SchedulerConfig, SchedulerSettings

PLUGIN = '''\
from blis_py import native

native.activate()  # as the command does, where the inner loop has been compiled

from blis_py.core.config import SchedulerSettings
from blis_py.core.policies import SCHEDULERS
from blis_py.core.queues import SortedQueue
from blis_py.core.settings import add, setting

add(
    SchedulerSettings,
    "short_tokens",
    int,
    setting(
        50, least=1, most=1000, flag="--short-tokens", aliases=("--short",), help="What counts as short."
    ),
)


def short_first(config):
    """Prompts that count as short first, and both kinds by arrival."""
    return SortedQueue(lambda request: (request.prompt_tokens > config.short_tokens, request.arrival_ns))


SCHEDULERS["short-first"] = short_first
'''
RUN = """
import sys
from blis_py.cli import main
sys.exit(main(sys.argv[1:]))
"""
REQUESTS = "arrival_s,input_tokens,output_tokens\n" + "".join(f"0,{n},1\n" for n in (90, 40, 80, 10))
LINE = ("--model", "qwen3-14b", "--scheduler", "short-first", "--max-num-seqs", "1", "--format", "json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "plugin.py").write_text(PLUGIN)
    (tmp_path / "trace.csv").write_text(REQUESTS)
    return tmp_path


def blis(folder: Path, *arguments: str, program: str = RUN) -> subprocess.CompletedProcess[str]:
    """A command line in a process of its own, with the plugin."""
    command = [sys.executable, "-c", f"import plugin\n{program}", *arguments]
    path = f"{folder}:{Path(__file__).resolve().parents[2]}"
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "100"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def order_of(folder: Path, *arguments: str) -> list[int]:
    """Prompt lengths in the order in which they end."""
    done = blis(
        folder, "replay", "--trace", "trace.csv", *LINE, "--out", "out", "--force", "--no-plots", *arguments
    )
    assert done.returncode == 0, done.stderr
    rows = (folder / "out" / "requests.csv").read_text().splitlines()
    names = rows[0].split(",")
    cells = [dict(zip(names, row.split(","), strict=True)) for row in rows[1:]]
    ended = sorted(cells, key=lambda row: float(row["finish_ms"] if "finish_ms" in row else row["e2e_ms"]))
    return [int(row["prompt_tokens"]) for row in ended]


@pytest.mark.slow
def test_its_flag_changes_what_the_policy_does(folder: Path) -> None:
    assert order_of(folder) == [40, 10, 90, 80]
    assert order_of(folder, "--short-tokens", "20") == [10, 90, 40, 80]
    assert order_of(folder, "--short", "85") == [40, 80, 10, 90]


@pytest.mark.slow
def test_it_is_a_key_of_the_yaml_and_of_the_resolved_configuration(folder: Path) -> None:
    (folder / "config.yaml").write_text("scheduler: {short_tokens: 20}\n")
    assert order_of(folder, "--config", "config.yaml") == [10, 90, 40, 80]
    assert "  short_tokens: 20\n" in (folder / "out" / "config.yaml").read_text()
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["scheduler"]["short_tokens"] == 20


@pytest.mark.slow
def test_its_bounds_hold_wherever_it_is_given(folder: Path) -> None:
    for given in (("--short-tokens", "0"), ("--set", "scheduler.short_tokens=0")):
        done = blis(folder, "run", *LINE, *given)
        assert done.returncode == 2
        assert "must be at least 1 (found 0)" in done.stderr


@pytest.mark.slow
def test_it_is_in_the_help_of_both_command_lines_with_its_default(folder: Path) -> None:
    text = "--short-tokens N              What counts as short. Default 50."
    assert text in blis(folder, "run", "--help-all").stdout
    pytest.importorskip("torch")
    assert text in blis(folder, "engine", "info", "--help").stdout


@pytest.mark.slow
def test_it_is_a_keyword_and_a_setting_of_the_engine(folder: Path) -> None:
    program = (
        "import inspect, blis_py as blis\n"
        "assert blis.build(model='qwen3-14b', short_tokens=7).scheduler.short_tokens == 7\n"
        "assert inspect.signature(blis.run).parameters['short_tokens'].default == 50\n"
        "assert 'short_tokens: whole number, at least 1, at most 1,000, default 50' in blis.run.__doc__\n"
        "from engine.cli.options import engine_config\n"
        "config = engine_config({'--model': 'qwen3-14b', '--short-tokens': 9})\n"
        "assert config.scheduler_config(10, 100).short_tokens == 9\n"
    )
    done = blis(folder, program=program)
    assert done.returncode == 0, done.stderr


# -- the package's own -----------------------------------------------------------------------------------


def test_every_setting_of_a_scheduler_is_declared_once() -> None:
    """The configuration and the core have the same fields, from the same registration; those of the core
    alone follow from the deployment."""
    section = {field.name: field for field in fields(SECTIONS["scheduler"])}
    for field in fields(SchedulerConfig):
        owner = next(
            base for base in SchedulerConfig.__mro__ if field.name in vars(base).get("__annotations__", {})
        )
        if issubclass(owner, SchedulerSettings) and owner is not SchedulerConfig:
            assert section[field.name].metadata is field.metadata, field.name


@pytest.mark.slow
def test_every_flag_of_a_setting_sets_a_key_and_has_a_name_in_python() -> None:
    keys = {flag.key for flags in SETTINGS.values() for flag in flags}
    assert keys <= set(NAMES.values())
    for key in keys - {"workload"}:
        value: object = load_config(overrides={"model": "qwen3-14b"})
        for part in key.split("."):
            value = getattr(value, part)


def test_the_help_states_the_default_of_the_preset() -> None:
    report = {flag.name: meaning(flag) for flags in SETTINGS.values() for flag in flags}
    assert report["--max-num-seqs"].endswith("Default 1024 (vllm).")
    assert report["--async-scheduling"].endswith("Default on (vllm).")
    assert report["--latency-model"].endswith("Default trained (vllm).")
    assert report["--block-size"].endswith("Default 16.")


@pytest.mark.parametrize(
    ("flag", "given", "key", "expected"),
    [
        ("--routing-scorers", "queue-depth:1,load:2", "routing.scorers", {"queue-depth": 1.0, "load": 2.0}),
        ("--alpha-coeffs", "1,2.5,3", "latency.alpha_coeffs", [1, 2.5, 3]),
        ("--slo-targets", "critical=150000", "gateway.slo_targets_us", {"critical": 150_000}),
        ("--columns", "arrival=ts,input=in", "workload.columns", {"arrival": "ts", "input": "in"}),
        ("--dispatch-tick-interval", 0, "gateway.dispatch_tick_interval_us", 1000),
        ("--timeout", -1.0, "workload.timeout_s", None),
    ],
)
def test_the_text_of_a_flag_is_read_by_its_registration(
    flag: str, given: object, key: str, expected: object
) -> None:
    assert overrides({flag: given}) == [(flag, key, expected)]


def test_no_two_settings_have_the_same_flag() -> None:
    flags = [flag for _, flag in flags_of(RunConfig, "Run")]
    for name, section in SECTIONS.items():
        flags += [flag for _, flag in flags_of(section, name, f"{name}.")]
    spellings = [spelling for flag in flags for spelling in flag.spellings]
    assert len(spellings) == len(set(spellings))
