"""What was run is not run again: known by content, and trusted only as it was written."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py.api import configure
from blis_py.errors import InputError
from blis_py.planning import contents, store
from blis_py.planning.contents import Contents
from blis_py.planning.executors import Serial
from blis_py.planning.job import Job, JobOutcome, Variation
from blis_py.planning.runner import Runner
from blis_py.planning.store import Folder, ResultStore, default_folder

ROOT = Path(__file__).resolve().parents[2]


def run(jobs: list[Job], store: ResultStore) -> tuple[list[JobOutcome], int]:
    with Runner(Serial(), store) as runner:
        return runner.run(jobs), runner.done


def test_a_second_time_nothing_is_simulated_and_all_is_the_same(jobs: list[Job], tmp_path: Path) -> None:
    first, done = run(jobs, Folder(tmp_path))
    assert done == len(jobs)
    assert run(jobs, Folder(tmp_path)) == (first, 1)  # what is refused is refused again


def test_it_is_noted_what_was_in_the_store(jobs: list[Job], tmp_path: Path) -> None:
    noted = []
    for some in (jobs[:1], [jobs[1], jobs[0], jobs[1]]):
        with Runner(Serial(), Folder(tmp_path)) as runner:
            runner.run(some, lambda index, _, stored: noted.append((index, stored)))
    assert noted == [(0, False), (1, True), (0, False), (2, False)]


def test_what_was_interrupted_goes_on_where_it_stopped(jobs: list[Job], tmp_path: Path) -> None:
    def stop(index: int, outcome: JobOutcome, stored: bool) -> None:
        if index == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Runner(Serial(), Folder(tmp_path)) as runner:
        runner.run(jobs, stop)
    jobs = [job for job in jobs if job.config.tp == 1]
    assert run(jobs, Folder(tmp_path))[1] == len(jobs) - 4


@pytest.mark.parametrize("damage", ["", "{}", "cut", "figure", "key"])
def test_an_entry_that_is_not_as_it_was_written_is_done_again(
    damage: str, jobs: list[Job], tmp_path: Path
) -> None:
    first, _ = run(jobs[:2], Folder(tmp_path))
    one, other = sorted(tmp_path.rglob("*.json"))
    text = one.read_text(encoding="utf-8")
    damaged = {
        "cut": text[: len(text) // 2],
        "figure": text.replace("120", "121", 1),
        "key": other.read_text(encoding="utf-8"),
    }
    one.write_text(damaged.get(damage, damage), encoding="utf-8")
    assert run(jobs[:2], Folder(tmp_path)) == (first, 1)
    assert run(jobs[:2], Folder(tmp_path)) == (first, 0)


def key(**settings: Any) -> str:
    found = Contents().key_of(Job(configure(model="llama-3.1-8b", **settings)))
    assert found is not None
    return found


def test_the_same_content_under_another_name_is_the_same(tmp_path: Path) -> None:
    text = (ROOT / "workloads" / "chat.yaml").read_text(encoding="utf-8")
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "c.yaml").write_text(text + "# more\n", encoding="utf-8")
    keys = [key(workload=str(tmp_path / name)) for name in ("a.yaml", "b.yaml", "c.yaml")]
    assert keys[0] == keys[1] != keys[2]


def test_a_file_that_a_workload_names_counts(tmp_path: Path) -> None:
    for path in (ROOT / "workloads").glob("diffusion-tiny*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    spec = tmp_path / "diffusion-tiny.yaml"
    before = key(workload=str(spec))
    rounds = tmp_path / "diffusion-tiny-LowConfidence-0.95.csv"
    rounds.write_text(rounds.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert key(workload=str(spec)) != before


def test_the_header_of_a_trace_counts(tmp_path: Path) -> None:
    trace, header = tmp_path / "t.csv", tmp_path / "t.yaml"
    trace.write_text("arrival_time_us,input_tokens,output_tokens\n0,5,5\n", encoding="utf-8")
    before = key(trace=str(trace))
    header.write_text("version: 2\n", encoding="utf-8")
    assert key(trace=str(trace)) != before


def test_settings_and_factors_count() -> None:
    config = configure(model="llama-3.1-8b")
    assert key() != key(scheduler="sjf")
    assert key() != Contents().key_of(Job(config, Variation(rate=1.1)))
    assert key() != Contents().key_of(Job(config, stops_at=("hopeless",)))


def test_the_order_in_which_settings_are_written_does_not_count() -> None:
    costs = {"step": 1e7, "decode_seqs": 2e4}
    keys = [
        key(latency_model="linear", linear={"gpu": dict(items)})
        for items in (costs.items(), reversed(costs.items()))
    ]
    assert keys[0] == keys[1] != key(latency_model="linear", linear={"gpu": {"step": 1e7}})


def test_other_code_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(contents, "code_digest", lambda: "another")
    assert key() != before


def test_a_run_of_a_file_that_is_not_there_is_not_kept(tmp_path: Path) -> None:
    job = Job(configure(model="llama-3.1-8b", trace=str(tmp_path / "none.csv")))
    found, _ = run([job], Folder(tmp_path / "cache"))
    assert "none.csv" in str(found[0].refused)
    assert not list((tmp_path / "cache").rglob("*.json"))


def _entry(file: Path, body: str) -> None:
    file.write_text(f"{sha256(body.encode()).hexdigest()}\n{body}", encoding="utf-8")


@pytest.mark.parametrize(
    "wrong",
    [
        {"figures": 5},
        {"figures": {"requests.injected": "many"}},
        {"classes": {"batch": [1]}},
        {"slo": [{"slo": "ttft.p99=1s"}]},
        {"slo": 5},
        {"verdict": None},
        {"facts": {}},
        {"facts": ["notes"]},
        {"early": "perhaps"},
        {"refused": "no"},
        {"more": 1},
    ],
)
def test_an_entry_of_another_shape_is_done_again_though_its_digest_is_right(
    wrong: dict[str, Any], jobs: list[Job], tmp_path: Path
) -> None:
    first, _ = run(jobs[:1], Folder(tmp_path))
    (file,) = tmp_path.rglob("*.json")
    entry = json.loads(file.read_text(encoding="utf-8").partition("\n")[2])
    entry["outcome"] |= wrong
    _entry(file, json.dumps(entry))
    assert run(jobs[:1], Folder(tmp_path)) == (first, 1)


@pytest.mark.parametrize("body", ["[]", "5", "null", "[" * 100_000])
def test_an_entry_that_is_none_is_done_again(body: str, jobs: list[Job], tmp_path: Path) -> None:
    first, _ = run(jobs[:1], Folder(tmp_path))
    (file,) = tmp_path.rglob("*.json")
    _entry(file, body)
    assert run(jobs[:1], Folder(tmp_path)) == (first, 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_an_entry_that_is_a_pipe_is_not_waited_for(jobs: list[Job], tmp_path: Path) -> None:
    first, _ = run(jobs[:1], Folder(tmp_path))
    (file,) = tmp_path.rglob("*.json")
    file.unlink()
    os.mkfifo(file)
    assert run(jobs[:1], Folder(tmp_path)) == (first, 1)


def test_a_store_has_a_folder_of_its_own() -> None:
    with pytest.raises(InputError, match="--cache: must not be empty"):
        Folder("")


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {}, "/home/me/.cache/blis-py/runs"),
        ("linux", {"XDG_CACHE_HOME": "/x"}, "/x/blis-py/runs"),
        ("darwin", {"XDG_CACHE_HOME": "/x"}, "/home/me/Library/Caches/blis-py/runs"),
        ("win32", {}, "/home/me/AppData/Local/blis-py/runs"),
        ("win32", {"LOCALAPPDATA": "/l"}, "/l/blis-py/runs"),
        ("darwin", {"BLIS_CACHE": "/own"}, "/own"),
    ],
)
def test_results_are_kept_where_the_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], folder: str
) -> None:
    for name in ("BLIS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setattr(store, "sys", SimpleNamespace(platform=platform))
    assert default_folder() == Path(folder)
