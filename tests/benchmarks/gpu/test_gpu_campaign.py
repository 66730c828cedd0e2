"""Jobs end by themselves, whatever their parts do, and leave what they found, whatever ends them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import campaign
import jobs
import process
import pytest
import torch
from jobs import CALL_S, CALLS, DEFAULT, JOBS, LEASE_S, START_S, Job, Part
from rows import read_rows

BEFORE_IT_BEGINS_OR_AFTER = (3.0, 30.0, 300.0)
"""Limits, one of which ends a process that has begun, on a busy machine as well."""
GPU = Path(campaign.__file__).parent
ROOT = GPU.parents[1]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything ten times as fast."""
    monkeypatch.setenv("GPU_REVISION", "test")
    monkeypatch.setattr(process, "ENDING", ((signal.SIGINT, 0.6), (signal.SIGTERM, 0.3), (signal.SIGKILL, 1)))
    monkeypatch.setattr(campaign, "ENDING_S", 2.0)
    monkeypatch.setattr(campaign, "PACKING_S", 0.5)
    monkeypatch.setattr(campaign, "MIN_S", 0.5)
    monkeypatch.setattr(campaign, "WITHIN_S", 2.0)


HANGS_S = 1000.0
"""Only what hangs takes so long, however busy the machine is."""


def part(name: str, code: str, limit_s: float = HANGS_S) -> Part:
    return Part(name, ("-c", code), limit_s, ("-c", code))


def run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *parts: Part, limit_s: float = 9 * HANGS_S
) -> list[Any]:
    """Name and state of the parts of a job of these."""
    monkeypatch.setitem(JOBS, "X", Job("something", limit_s, parts))
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    made = campaign.Campaign(out, tmp_path / "cache", "cpu", sys.executable, ())
    return [(name, state) for name, state, _ in made.run_job("X")]


def states(out: Path) -> dict[str, str]:
    return {row["key"]: row["state"] for row in read_rows(out) if "state" in row}


def gone(pid: int) -> bool:
    """Whether a process has ended; it may be an orphan."""
    for _ in range(6000):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


def test_parts_run_in_order_and_a_failure_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = part("one", "print('hello')"), part("two", "import sys; sys.exit(3)"), part("three", "")
    found = run(monkeypatch, tmp_path, *parts)
    assert found == [("one", "done"), ("two", "failed"), ("three", "done")]
    assert states(tmp_path / "out") == dict(found)
    assert "hello" in capsys.readouterr().out
    assert "hello" in (tmp_path / "out" / "log.txt").read_text()


def test_a_part_whose_time_is_over_is_ended_and_the_next_one_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code = "import time; print('begun', flush=True); time.sleep(9000)"
    for limit_s in BEFORE_IT_BEGINS_OR_AFTER:
        slow, following = part("slow", code, limit_s), part(f"next {limit_s}", "")
        assert [state for _, state in run(monkeypatch, tmp_path, slow, following)] == ["out of time", "done"]
        if "begun" in (tmp_path / "out" / "log.txt").read_text():
            return
    pytest.fail("it never began")


def test_a_job_ends_within_its_time_and_states_what_it_did_not_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every part takes all the time that it is given, and as long to end as one can."""
    now_s, given = 0.0, []

    def slowest(command: Any, limit_s: float, **others: Any) -> process.Ended:
        nonlocal now_s
        given.append(limit_s)
        now_s += limit_s + campaign.ENDING_S
        return process.Ended("out of time", None, limit_s, "")

    monkeypatch.setattr(campaign, "run", slowest)
    monkeypatch.setattr(campaign.time, "monotonic", lambda: now_s)
    parts = [part(name, "", 20.0) for name in ("one", "two", "three", "four")]
    found = run(monkeypatch, tmp_path, *parts, limit_s=60.0)
    assert given == [
        20.0,
        20.0,
        60.0 - campaign.PACKING_S - 2 * (20.0 + campaign.ENDING_S) - campaign.ENDING_S,
    ]
    assert now_s == 60.0 - campaign.PACKING_S
    assert [state for _, state in found] == ["out of time"] * 3 + ["no time left"]


def test_a_process_that_will_not_end_is_killed_with_all_that_it_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stubborn = (
        "import signal, subprocess, sys, time\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(9000)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
        "time.sleep(9000)\n"
    )
    for limit_s in BEFORE_IT_BEGINS_OR_AFTER:
        found = run(monkeypatch, tmp_path, part("stubborn", stubborn, limit_s))
        assert found == [("stubborn", "out of time")]
        if (tmp_path / "pid").exists() and (pid := (tmp_path / "pid").read_text()):
            assert gone(int(pid))
            return
    pytest.fail("it never began")


def test_what_a_process_leaves_behind_does_not_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    leaving = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(9000)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid))\n"
    )
    assert run(monkeypatch, tmp_path, part("leaving", leaving)) == [("leaving", "done")]
    assert gone(int((tmp_path / "pid").read_text()))


def test_a_part_gets_its_time_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = "import sys; sys.exit(int(float(sys.argv[1]) != 18))"
    timed = Part("timed", ("-c", code, "{seconds}"), 20.0, ("-c", code, "{seconds}"))
    assert run(monkeypatch, tmp_path, timed) == [("timed", "done")]


def test_parts_that_were_done_are_not_run_again_and_those_that_failed_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    noting = f"open({str(tmp_path / 'runs')!r}, 'a').write('x')"
    slow = part("slow", "import time; time.sleep(9000)", 1.0)
    broken = part("broken", "import sys; sys.exit(1)")
    run(monkeypatch, tmp_path, part("noting", noting), broken, slow)
    quick = part("slow", "")
    found = run(monkeypatch, tmp_path, part("noting", noting), broken, quick)
    assert found == [("noting", "done before"), ("broken", "failed"), ("slow", "done")]
    assert (tmp_path / "runs").read_text() == "x"
    monkeypatch.setattr(campaign, "revision", lambda: "test tree:other")
    assert run(monkeypatch, tmp_path, part("noting", noting)) == [("noting", "done")], "of other code"


def test_without_a_gpu_no_other_part_is_begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    refusing = part(
        "refusing", "import sys; sys.exit('this measures a GPU, and there is no CUDA device here')"
    )
    assert run(monkeypatch, tmp_path, refusing, part("next", "")) == [("refusing", "no GPU")]


DRIVER = """
import sys
sys.path.insert(0, {gpu!r})
import campaign, jobs
jobs.JOBS.clear()
first = "import time; print('first', flush=True)"
slow = "import os, time; open({pid!r}, 'w').write(str(os.getpid())); time.sleep(9000 if {slow} else 0)"
jobs.JOBS["X"] = jobs.Job("two parts", 9000, tuple(
    jobs.Part(name, ("-c", code), 1000, ("-c", code)) for name, code in (("first", first), ("second", slow))
))
sys.argv = ["campaign.py", "X", "--out", {out!r}, "--cache", {cache!r}, "--device", "cpu"]
sys.exit(campaign.main())
"""


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Any]:
    """Starts a campaign of its own, whose second part is slow or not."""
    begun: list[subprocess.Popen[bytes]] = []

    def start(slow: bool) -> subprocess.Popen[bytes]:
        places = {
            "pid": str(tmp_path / "pid"),
            "out": str(tmp_path / "out"),
            "cache": str(tmp_path / "cache"),
        }
        code = DRIVER.format(gpu=str(GPU), slow=slow, **places)
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        begun.append(subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT))
        return begun[-1]

    yield start
    for one in begun:
        one.kill()
        one.wait()


def wait_for(path: Path) -> int:
    for _ in range(6000):
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.1)
    raise AssertionError(f"{path} never came")


def test_a_campaign_that_is_killed_leaves_what_it_found_and_goes_on_later(
    driven: Any, tmp_path: Path
) -> None:
    one = driven(slow=True)
    pid = wait_for(tmp_path / "pid")
    one.send_signal(signal.SIGKILL)
    one.wait()
    assert gone(pid), "no process keeps the GPU"
    assert states(tmp_path / "out") == {"first": "done"}
    assert "first" in (tmp_path / "out" / "log.txt").read_text()
    other = driven(slow=False)
    assert other.wait() == 0
    lines = [row["key"] for row in read_rows(tmp_path / "out") if "state" in row]
    assert lines == ["first", "second"], "the first part was not run again"


def test_a_terminated_campaign_ends_its_part_and_reports_it(driven: Any, tmp_path: Path) -> None:
    one = driven(slow=True)
    pid = wait_for(tmp_path / "pid")
    one.send_signal(signal.SIGTERM)
    assert one.wait() == 128 + signal.SIGTERM
    assert gone(pid)
    assert states(tmp_path / "out") == {"first": "done", "second": "interrupted"}


# -- the jobs --------------------------------------------------------------------------------------------


MIN_FOR_A_START_S = 240


def test_all_calls_fit_into_28_minutes_with_their_starts() -> None:
    """The worth of a call falls from one to the next: tests, then profiles and steps, then the rest."""
    assert CALLS == (("A",), ("D", "C"), ("B", "E"))
    assert DEFAULT == ("A", "D", "C", "B", "E")
    left_s = LEASE_S
    assert left_s == 28 * 60
    for call in CALLS:
        assert left_s >= MIN_FOR_A_START_S
        took_s = sum(JOBS[name].limit_s for name in call)
        assert took_s + 10 <= CALL_S == 9 * 60, "with what comes before and behind the jobs"
        left_s -= START_S + took_s
    assert left_s >= 0


def test_parts_fit_into_their_job_and_have_names_of_their_own() -> None:
    for job in JOBS.values():
        assert all(part.limit_s < job.limit_s - 20 for part in job.parts)
    names = [part.name for job in JOBS.values() for part in job.parts]
    assert len(names) == len(set(names)), "a part is known by its name"


def models_of(part: Part) -> list[str]:
    words = list(part.command)
    behind = words[words.index("--model") + 1 :] if "--model" in words else []
    return list(itertools.takewhile(lambda word: not word.startswith("--"), behind))


def test_kernels_are_compiled_for_the_models_that_are_measured_and_8b_comes_first() -> None:
    parts = [part for job in JOBS.values() for part in job.parts]
    warmed = next(models_of(part) for part in parts if part.name == "warm")
    measured = [models_of(part) for part in parts if part.name != "warm" and models_of(part)]
    assert set(warmed) == {name for names in measured for name in names} | {jobs.AR, jobs.DIFFUSION}
    assert all(names[0] == "qwen3-8b" for names in measured if len(names) > 1)
    assert JOBS["D"].parts[0].name == "profile-qwen3-8b"
    assert JOBS["E"].parts[0].name == "overlap"


CALL_ALL = """
import contextlib, importlib, io, json, sys
from pathlib import Path
sys.path.insert(0, {gpu!r})
from jobs import JOBS, SCRIPTS
outcomes = {{}}
for part in (part for job in JOBS.values() for part in job.parts if part.command[0].startswith(SCRIPTS)):
    path, *arguments = (argument.replace("{{seconds}}", "60") for argument in part.command)
    sys.argv = [path, *arguments, "--device", "cuda", "--out", {out!r}]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            importlib.import_module(Path(path).stem).main()
    except SystemExit as refused:
        outcomes[part.name] = [refused.code, said.getvalue()]
print(json.dumps(outcomes))
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="here they would measure")
def test_every_script_understands_its_arguments_and_refuses_to_run_without_a_gpu(tmp_path: Path) -> None:
    code = CALL_ALL.format(gpu=str(GPU), out=str(tmp_path))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    report = json.loads(done.stdout)
    assert len(report) > 10
    for name, (status, said) in report.items():
        assert (status, "there is no CUDA device here" in said) == (2, True), f"{name}: {said}"
    assert not list(tmp_path.iterdir())


def test_every_file_of_gpu_tests_is_a_part() -> None:
    files = {f"tests/gpu/{path.name}" for path in (ROOT / "tests" / "gpu").glob("test_*.py")}
    assert {part.command[1] for part in jobs.gpu_tests(1)} == files


# -- what can be brought home ----------------------------------------------------------------------------


def test_files_that_cannot_be_brought_home_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(name: str, size: int = 1) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)

    monkeypatch.setattr(campaign, "MAX_BYTES", 100)
    for number in range(7):
        put(f"profiles/model-{number}/samples.csv.gz")
    put("large", 100)
    assert campaign.problems(tmp_path) == []
    put("too large", 101)
    put("a/b/c/d")
    text = "; ".join(campaign.problems(tmp_path))
    assert "10 files" in text
    assert "too large: too far down, or an odd name" in text
    assert "101 bytes" in text
    assert "a/b/c/d: too far down" in text


def test_what_an_earlier_campaign_left_is_taken_over_and_nothing_is_overwritten(tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    for folder, text in ((given, "old"), (out, "new")):
        (folder / "profiles").mkdir(parents=True)
        (folder / "results.jsonl").write_text(text)
    (given / "profiles" / "x").write_text("old")
    campaign.bring(given, out)
    assert (out / "results.jsonl").read_text() == "new"
    assert (out / "profiles" / "x").read_text() == "old"


# -- what the machine lacks ------------------------------------------------------------------------------


def wheel(folder: Path) -> None:
    """A package `carried`, as pip takes it."""
    folder.mkdir()
    name, text = "carried-1.dist-info", "Metadata-Version: 2.1\nName: carried\nVersion: 1\n"
    with zipfile.ZipFile(folder / "carried-1-py3-none-any.whl", "w") as archive:
        archive.writestr("carried.py", "FOUND = True\n")
        archive.writestr(f"{name}/METADATA", text)
        archive.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{name}/RECORD", "")


def test_parts_find_the_packages_of_wheels_that_travel_along(tmp_path: Path) -> None:
    pytest.importorskip("pip")
    wheel(tmp_path / "wheels")
    packages = campaign.install(tmp_path / "wheels", sys.executable, tmp_path / "packages")
    made = campaign.Campaign(tmp_path / "out", tmp_path / "cache", "cpu", sys.executable, (), packages)
    assert made.run_part("X", part("uses", "import carried"), time.monotonic() + 9 * HANGS_S)[0] == "done"


def test_a_folder_without_wheels_stops_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.install(tmp_path, sys.executable, tmp_path / "packages") is None
    assert "going on without" in capsys.readouterr().err
