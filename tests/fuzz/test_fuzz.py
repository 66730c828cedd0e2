"""Whatever is in a file, a reader gives data or one `InputError`, and a command ends with 0, or 2 and a line.

Here a few of the inputs that `make fuzz` makes by the thousand, always the same ones; `corpus` holds files
that programs like this one have been broken with.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import flags
import judge
import mutate
import pytest
import scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from targets import COMMANDS, READERS, Command, Reader

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())
RANDOM = st.randoms(use_true_random=False)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Good files, not to be changed."""
    return scenario.build(tmp_path_factory.mktemp("fuzz") / "base")


@pytest.fixture(scope="module")
def folder(base: Path) -> Iterator[Path]:
    """A copy of them, and the working directory: what commands write stays there."""
    copy = base.parent / "files"
    shutil.copytree(base, copy)
    before = Path.cwd()
    os.chdir(base.parent)
    yield copy
    os.chdir(before)


def verdict(target: Reader | Command, folder: Path, data: bytes) -> judge.Verdict:
    """How it goes with this file; afterwards the folder is as it was."""
    file = folder / target.file
    good = file.read_bytes()
    file.write_bytes(data)
    try:
        if isinstance(target, Reader):
            return judge.of_reader(lambda: target.read(folder))
        return judge.of_command(target.arguments(folder), codes=target.codes)
    finally:
        file.write_bytes(good)


TARGETS: dict[str, Reader | Command] = {**READERS, **COMMANDS}


@pytest.mark.parametrize("name", TARGETS)
def test_the_good_file_is_read(base: Path, folder: Path, name: str) -> None:
    target = TARGETS[name]
    found = verdict(target, folder, (base / target.file).read_bytes())
    assert found.end == "fine", found.detail


@pytest.mark.parametrize("name", TARGETS)
def test_files_that_have_broken_programs_are_data_or_one_error(folder: Path, name: str) -> None:
    """Each reader gets a third of them, each command, which has its readers, an eighth."""
    share = 3 if name in READERS else 8
    for file in CORPUS[list(TARGETS).index(name) % share :: share]:
        found = verdict(TARGETS[name], folder, file.read_bytes())
        assert found.good, f"{file.name}: {found.end} {found.detail}"


FOUND = {
    "gpu-efficiency-of-nothing.yaml": "run --gpu, roofline",
    "profile-key-null.yaml": "run --profile",
    "space-without-end.yaml": "sweep --space",
    "instance-beyond-all.csv": "compare",
    "summary-without-end.json": "compare, summaries",
    "endless-rate.yaml": "convert inference-perf",
    "steps-without-a-name.csv": "saved steps.csv",
    "promises-of-no-texts.yaml": "saved config.yaml",
    "sweep-without-settings.yaml": "settings of a sweep",
    "requests-without-prompt.csv": "parity, requests",
    "steps-of-terabytes.csv": "vllm steps",
    "digit-of-another-script.csv": "azure with a clock",
}
"""Files in `found`, which `make fuzz` made, and what each of them broke."""


def test_every_file_that_was_found_is_tried() -> None:
    assert FOUND.keys() == {path.name for path in (Path(__file__).parent / "found").iterdir()}


@pytest.mark.parametrize("file", FOUND)
def test_what_fuzzing_found_is_refused(folder: Path, file: str) -> None:
    data = (Path(__file__).parent / "found" / file).read_bytes()
    found = verdict(TARGETS[FOUND[file]], folder, data)
    assert found.end == "refused", found.detail


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_are_data_or_one_error(folder: Path, name: str) -> None:
    @settings(max_examples=15, derandomize=True)
    @given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
    def holds(data: bytes) -> None:
        found = verdict(READERS[name], folder, data)
        assert found.good, found.detail

    holds()


@pytest.mark.parametrize("name", TARGETS)
def test_a_good_file_with_a_few_changes_is_data_or_one_error(base: Path, folder: Path, name: str) -> None:
    target = TARGETS[name]
    good = (base / target.file).read_bytes()

    @settings(max_examples=12 if name in READERS else 4, derandomize=True)
    @given(RANDOM)
    def holds(rng: Random) -> None:
        found = verdict(target, folder, mutate.mutated(rng, good, target.file))
        assert found.good, found.detail

    holds()


def test_odd_flags_are_a_run_or_one_error(folder: Path) -> None:
    @settings(max_examples=60, derandomize=True)
    @given(RANDOM)
    def holds(rng: Random) -> None:
        found = judge.of_command(flags.arguments(rng, folder))
        assert found.good, found.detail

    holds()


IN_A_PROCESS = {
    "brackets.gz": "run --config {}/config.yaml",
    "dashes.gz": "run --model qwen3-14b --workload-spec {}/spec.yaml",
    "zeros.gz": "replay --model qwen3-14b --trace {}/azure.csv",
    "gzip-cut": "profile import {}/vllm_steps.csv --model qwen3-0.6b --out out",
    "absurd-config.yaml": "run --config {}/config.yaml",
}


@pytest.mark.parametrize("name", IN_A_PROCESS)
def test_a_process_ends_with_exit_code_2_and_no_signal(base: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(base, tmp_path / "files")
    data = next(file for file in CORPUS if file.name == name).read_bytes()
    for file in ("config.yaml", "spec.yaml", "azure.csv", "vllm_steps.csv"):
        (tmp_path / "files" / file).write_bytes(data)
    words = IN_A_PROCESS[name].replace("{}", str(tmp_path / "files")).split()
    done = subprocess.run(
        [sys.executable, "-m", "blis_py", *words], cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


# -- the judge is judged ---------------------------------------------------------------------------------


def endless() -> None:
    while True:
        pass


def noisy() -> None:
    import numpy as np

    np.float64(1e308) * 10


BAD_READERS: dict[str, Callable[[], Any]] = {"hang": endless, "traceback": lambda: int("x")}


@pytest.mark.parametrize("end", BAD_READERS)
def test_a_bad_reader_is_found_out(end: str) -> None:
    assert judge.of_reader(BAD_READERS[end], seconds=0.2).end == end


def test_a_reader_that_computes_nonsense_is_found_out() -> None:
    assert judge.of_reader(noisy).end == "traceback"


@pytest.mark.parametrize(
    ("code", "out", "err", "end"),
    [
        (0, "{}", "talk\n", "fine"),
        (2, "", "talk\nerror: no\n", "refused"),
        (1, "", "error: no\n", "exit code"),
        (130, "", "", "exit code"),
        (2, "{", "error: no\n", "noise"),
        (2, "", "no\n", "noise"),
        (0, "{}", "Traceback (most recent call last):\n", "noise"),
        (0, "{}", "x.py:1: RuntimeWarning: overflow\n", "noise"),
    ],
)
def test_a_bad_end_of_a_command_is_found_out(code: int, out: str, err: str, end: str) -> None:
    assert judge.judged(code, out, err).end == end
