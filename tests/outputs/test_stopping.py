"""Ctrl-C, SIGTERM, SIGKILL and full disks, for real: in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blis_py.cli import main
from blis_py.outputs.unfinished import PREFIX

ROOT = Path(__file__).resolve().parents[2]
TRIALS = Path(__file__).with_name("stopped_saves.py")
RUN = ("run", "--model", "qwen3-14b", "--num-requests", "20", "--rate", "4")
SAVE = (*RUN, "--no-plots", "--out")
ENDS = {signal.SIGINT: (130, "interrupted"), signal.SIGTERM: (143, "terminated")}

HANGS_S = 600
"""Only a process that hangs takes so long, however busy the machine is."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Children can be interrupted, also where the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def blis(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A process of the command line."""
    return subprocess.Popen(
        [sys.executable, "-m", "blis_py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + HANGS_S
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopping") / "out"
    assert main([*SAVE, str(folder), "--seed", "1"]) == 0
    return folder


@pytest.fixture
def old(result: Path, tmp_path: Path) -> dict[str, bytes]:
    """A result in `tmp_path/home/out`."""
    shutil.copytree(result, tmp_path / "home" / "out")
    return files(tmp_path / "home")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "aside", "full"])
def test_there_is_the_old_result_or_the_new_one_whenever_saving_is_stopped(how: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TRIALS), str(tmp_path), how, "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["stopped"] > 0
    if how in ("SIGKILL", "aside"):
        assert report["left something"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDS)
def test_a_run_that_is_stopped_while_it_writes_says_so_and_leaves_nothing(
    number: signal.Signals, old: dict[str, bytes], tmp_path: Path
) -> None:
    """It blocks on a pipe without a reader while the folder is written already."""
    home = tmp_path / "home"
    os.mkfifo(tmp_path / "pipe")
    process = blis(*SAVE, home / "out", "--force", "--results-path", tmp_path / "pipe", "--seed", "2")
    wait_for(lambda: list(home.glob(f"{PREFIX}*/out/trace.csv")), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_S)
    code, word = ENDS[number]
    assert (process.returncode, err.splitlines()[2:]) == (code, [word])
    assert json.loads(out)["cluster"]["requests"]["completed"] == 20  # printed before it was written
    assert os.listdir(home) == ["out"]
    assert files(home) == old


@pytest.mark.slow
def test_what_a_killed_run_left_goes_with_the_next(old: dict[str, bytes], tmp_path: Path) -> None:
    home = tmp_path / "home"
    os.mkfifo(tmp_path / "pipe")
    process = blis(*SAVE, home / "out", "--force", "--results-path", tmp_path / "pipe", "--seed", "2")
    wait_for(lambda: list(home.glob(f"{PREFIX}*/out/trace.csv")), process)
    process.kill()
    process.communicate()
    assert {name: text for name, text in files(home).items() if not name.startswith(PREFIX)} == old
    process = blis(*SAVE, home / "other")
    process.communicate()
    assert process.returncode == 0
    assert sorted(os.listdir(home)) == ["other", "out"]


@pytest.mark.slow
@pytest.mark.parametrize("number", ENDS)
def test_a_simulation_can_be_stopped(number: signal.Signals) -> None:
    lengths = [f"--{side}-tokens{what}" for side in ("prompt", "output") for what in ("=9", "-stdev=2")]
    process = blis(*RUN, *lengths, "--num-requests", "3000000", "--rate", "40", BLIS_INTERPRETED="1")
    assert process.stderr is not None
    process.stderr.readline(), process.stderr.readline()  # it simulates, or is about to
    process.send_signal(number)
    out, err = process.communicate(timeout=HANGS_S)
    code, word = ENDS[number]
    assert (process.returncode, out, err) == (code, "", f"{word}\n")


@pytest.mark.parametrize("swallowed", [False, True])
def test_an_interrupt_while_it_imports_is_reported_in_a_word(swallowed: bool, tmp_path: Path) -> None:
    """Also where a library takes it for a failure of its own import."""
    slow = f"import sys, time; print('importing', file=sys.stderr, flush=True); time.sleep({HANGS_S})"
    if swallowed:
        slow = f"try:\n    {slow}\nexcept BaseException as error:\n    raise ImportError from error\n"
    (tmp_path / "numpy.py").write_text(slow)
    process = blis(*RUN, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert process.stderr is not None
    assert process.stderr.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANGS_S)
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_in_the_background_it_still_ignores_the_signals_set_to_be_ignored(tmp_path: Path) -> None:
    slow = "import sys; print('importing', file=sys.stderr, flush=True); sys.stdin.readline()"
    (tmp_path / "numpy.py").write_text(slow)
    process = subprocess.Popen(
        [sys.executable, "-m", "blis_py", *RUN],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN) and None,
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate("go on\n", timeout=HANGS_S)
    assert process.returncode != 130
    assert "interrupted" not in err


# -- full disks --------------------------------------------------------------------------------------


def limited(file_bytes: int) -> Callable[[], None]:
    """To be called in the child: no file may be larger."""
    import resource

    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))


def run_limited(file_bytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A command on a full disk, which must not cut off the bytecode of modules that others read, too."""
    return subprocess.run(
        [sys.executable, "-m", "blis_py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=limited(file_bytes),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_named_and_the_result_is_printed_all_the_same(
    old: dict[str, bytes], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    arguments = (*SAVE, home / "out", "--seed", "2", "--force", "--results-path", home / "r.json")
    done = run_limited(1000, *arguments)
    assert done.returncode == 1
    assert done.stderr.splitlines()[2:] == [f"error: {home / 'out' / 'config.yaml'}: File too large"]
    assert json.loads(done.stdout)["cluster"]["requests"]["completed"] == 20
    assert os.listdir(home) == ["out"]
    assert files(home) == old


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "limit_bytes", "file"),
    [
        ((*RUN, "--metrics-path", "{home}/m.json"), 100, "m.json"),
        ((*RUN, "--results-path", "{home}/r.json"), 100, "r.json"),
        ((*SAVE, "{home}/out", "--record-itl"), 13_000, "out/itl.csv"),
        (("calibrate", "{run}", "--results", "{run}", "--report", "{home}/report.json"), 100, "report.json"),
        (("calibrate", "{run}", "--results", "{run}", "--plot", "{home}/plot.png"), 999, "plot.png"),
        (("profile", "fit", "{profile}", "--out", "{home}/new", "--bootstrap", "0"), 999, "new/profile.yaml"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_every_command_that_writes_names_the_file_and_leaves_nothing(
    verb: tuple[str, ...], limit_bytes: int, file: str, tmp_path: Path
) -> None:
    recorded = ROOT / "docs" / "recorded"
    places = {"home": tmp_path, "run": recorded / "tiny-run", "profile": recorded / "tiny-profile"}
    done = run_limited(limit_bytes, *(word.format(**places) for word in verb))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"error: {tmp_path / file}: File too large"
    assert done.stdout != ""
    assert os.listdir(tmp_path) == []


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(place)]
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_keeps_the_old_result(tmpfs: Path) -> None:
    process = blis(*SAVE, tmpfs / "out", "--seed", "1")
    assert process.communicate()[1].count("\n") == 2
    old = files(tmpfs)
    process = blis(*SAVE, tmpfs / "out", "--force", "--record-itl", "--num-requests", "400")
    out, err = process.communicate()
    assert process.returncode == 1
    assert "No space left on device" in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith(f"error: {tmpfs / 'out'}{os.sep}")
    assert json.loads(out)["cluster"]["requests"]["completed"] == 400
    assert os.listdir(tmpfs) == ["out"]
    assert files(tmpfs) == old


@pytest.mark.slow
def test_a_folder_that_is_mounted_is_filled(tmpfs: Path) -> None:
    for seed in ("1", "2"):
        process = blis(*SAVE, tmpfs, "--force", "--seed", seed)
        assert process.communicate()[1].count("\n") == 2
        assert f"seed: {seed}" in (tmpfs / "config.yaml").read_text()
        assert not [name for name in os.listdir(tmpfs) if name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize("stdout", ["/dev/full", "a closed pipe"])
def test_a_result_is_written_though_it_cannot_be_printed(stdout: str, tmp_path: Path) -> None:
    """As in `blis run --out out | head -1`."""
    if stdout == "a closed pipe":
        read, target = os.pipe()
        os.close(read)
    elif os.path.exists(stdout):
        target = os.open(stdout, os.O_WRONLY)
    else:
        pytest.skip("there is no /dev/full here")
    command = [sys.executable, "-m", "blis_py", *SAVE, str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, stdout=target, stderr=subprocess.PIPE, check=False)
    os.close(target)
    assert done.returncode == 1
    assert b"Exception ignored" not in done.stderr
    assert (tmp_path / "out" / "complete.json").exists()
