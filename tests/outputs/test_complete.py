"""Which folders are taken for whole results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from blis_py.api import run
from blis_py.calibrate.read_times import read_token_times
from blis_py.errors import InputError
from blis_py.outputs.complete import MARKER, check_complete
from blis_py.outputs.staging import Outputs
from blis_py.result import Result
from blis_py.traces import read_trace

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def result() -> Result:
    return run(model="qwen3-14b", num_requests=5, rate=4, output_tokens=9, output_tokens_stdev=3)


@pytest.fixture(scope="module")
def saved(result: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return result.save(tmp_path_factory.mktemp("saved") / "out", itl=True)


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A whole one."""
    return Path(shutil.copytree(saved, tmp_path / "out"))


@pytest.mark.slow
def test_the_marker_lists_every_file_and_its_size(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != MARKER]
    listed = json.loads((folder / MARKER).read_text())["files"]
    assert listed == {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    assert {"itl.csv", "trace.csv", "plots/overview.png"} <= set(listed)


def test_the_same_run_gives_the_same_marker(result: Result, tmp_path: Path) -> None:
    one, two = (result.save(tmp_path / name, plots=False) for name in ("one", "two"))
    assert (one / MARKER).read_bytes() == (two / MARKER).read_bytes()


@pytest.mark.slow
def test_a_whole_result_is_taken_with_or_without_its_pictures(folder: Path) -> None:
    check_complete(folder)
    shutil.rmtree(folder / "plots")
    check_complete(folder)
    check_complete(folder / "trace.csv")


def test_a_result_without_one_of_its_files_is_refused(folder: Path) -> None:
    (folder / "itl.csv").unlink()
    with pytest.raises(InputError, match=r"not complete: a file is missing \(found 'itl.csv'\)"):
        read_token_times(folder)


def test_a_file_that_was_copied_in_part_is_refused(folder: Path) -> None:
    text = (folder / "trace.csv").read_text()
    (folder / "trace.csv").write_text(text[: text.rindex("\n", 0, -1) + 1])  # one request less
    for read in (read_trace, read_token_times):
        with pytest.raises(InputError, match=rf"trace.csv: has .* bytes where {len(text):,} were written"):
            read(folder / "trace.csv")


def test_token_times_of_a_result_that_is_not_whole_are_refused(saved: Path, folder: Path) -> None:
    (folder / "requests.csv").unlink()
    with pytest.raises(InputError, match="not complete: a file is missing"):
        read_token_times(saved, folder / "itl.csv")


def test_what_was_changed_on_purpose_can_be_taken_out_of_the_marker(folder: Path) -> None:
    marker = json.loads((folder / MARKER).read_text())
    del marker["files"]["trace.csv"]
    (folder / MARKER).write_text(json.dumps(marker))
    lines = (folder / "trace.csv").read_text().splitlines(keepends=True)
    (folder / "trace.csv").write_text("".join(lines[:-1]))
    assert len(read_trace(folder / "trace.csv")) == 4


def test_a_simulated_result_without_marker_is_refused_unless_one_vouches_for_it(folder: Path) -> None:
    (folder / MARKER).unlink()
    with pytest.raises(InputError, match="may not be complete: it has no ") as raised:
        read_trace(folder / "trace.csv")
    assert str(raised.value).endswith(f"write {{}} into a file {MARKER} there")
    (folder / MARKER).write_text("{}")
    assert len(read_trace(folder / "trace.csv")) == 5


@pytest.mark.parametrize("text", ["", "[]", '{"files": 1}', '{"files": {"a": "b"}}', "[" * 100_000])
def test_a_damaged_marker_is_refused(folder: Path, text: str) -> None:
    (folder / MARKER).write_text(text)
    with pytest.raises(InputError, match="this result is not complete: damaged"):
        read_trace(folder / "trace.csv")


def test_what_an_interrupted_run_left_is_refused(result: Result, tmp_path: Path) -> None:
    with Outputs() as outputs:
        left = outputs.folder(tmp_path / "out")
        result.fill(left, plots=False)
        with pytest.raises(InputError, match="interrupted run left behind"):
            read_trace(left / "trace.csv")


def test_folders_that_no_run_of_ours_wrote_are_not_judged(folder: Path, tmp_path: Path) -> None:
    for name in ("trace.csv", "trace.yaml", "itl.csv", "config.yaml"):
        shutil.copy(folder / name, tmp_path / name)
    assert len(read_trace(tmp_path / "trace.csv")) == 5
    assert read_token_times(tmp_path).gaps is not None


def test_a_name_that_is_too_long_belongs_to_no_result() -> None:
    check_complete("a" * 300)


def test_a_measured_run_without_marker_is_taken_for_its_last_file_is_there(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "recorded" / "tiny-run", tmp_path / "run")
    (tmp_path / "run" / MARKER).unlink()
    check_complete(tmp_path / "run")


def test_a_result_from_before_there_was_a_marker_can_be_replaced(result: Result, folder: Path) -> None:
    (folder / MARKER).unlink()
    result.save(folder, force=True, plots=False)
    assert not (folder / "plots").exists()
    assert not (folder / "itl.csv").exists()
    check_complete(folder)
