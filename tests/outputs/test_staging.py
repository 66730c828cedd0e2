"""Files and folders that appear as a whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_py.errors import InputError
from blis_py.outputs import exchange
from blis_py.outputs.complete import MARKER, check_complete
from blis_py.outputs.places import check_file, check_folder, writable
from blis_py.outputs.staging import Outputs, replacing, write_text
from blis_py.outputs.unfinished import PREFIX


def save(folder: Path, *, force: bool = False, **texts: str) -> None:
    """A result of these files; `a_b="x"` is `x` in `a/b`."""
    with Outputs() as outputs:
        place = outputs.folder(folder, force=force)
        for name, text in texts.items():
            file = place / name.replace("_", "/")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)


def content(folder: Path) -> dict[str, str]:
    """All that is in a folder, but for the marker."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != MARKER)
    return {path.relative_to(folder).as_posix(): path.read_text() for path in files}


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that cannot let two folders change places."""
    monkeypatch.setattr(exchange, "_exchanged", lambda one, other: False)


@pytest.fixture(params=["exchanged", "renamed aside"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "renamed aside":
        no_exchange(monkeypatch)


def test_a_folder_appears_when_all_of_it_is_written(tmp_path: Path) -> None:
    with Outputs() as outputs:
        folder = outputs.folder(tmp_path / "deep" / "out")
        (folder / "a").write_text("1")
        assert not (tmp_path / "deep" / "out").exists()
    assert content(tmp_path / "deep" / "out") == {"a": "1"}
    assert names(tmp_path / "deep") == ["out"]


def test_after_an_error_everything_is_as_it_was(tmp_path: Path) -> None:
    save(tmp_path / "out", a="old")
    (tmp_path / "file").write_text("old")

    def fail() -> None:
        with Outputs() as outputs:
            (outputs.folder(tmp_path / "out", force=True) / "a").write_text("new")
            outputs.file(tmp_path / "file").write_text("new")
            outputs.file(tmp_path / "new" / "file").write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert names(tmp_path) == ["file", "out"]
    assert content(tmp_path) == {"file": "old", "out/a": "old"}


@pytest.mark.usefixtures("system")
def test_force_replaces_the_whole_result(tmp_path: Path) -> None:
    save(tmp_path / "out", a="old", b="old", plots_c="old")
    save(tmp_path / "out", force=True, a="new")
    assert names(tmp_path / "out") == ["a", MARKER]
    assert content(tmp_path) == {"out/a": "new"}


def test_a_link_leads_to_what_is_replaced_and_stays(tmp_path: Path) -> None:
    save(tmp_path / "real", a="old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    save(tmp_path / "link", force=True, a="new")
    assert (tmp_path / "link").is_symlink()
    assert content(tmp_path / "real") == {"a": "new"}


def test_a_file_is_replaced_with_its_permissions_and_a_link_to_it_stays(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o600)
    link.symlink_to(file)
    write_text(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o600)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("stranger", ["notes.txt", "photos/cat.png", "empty/", "plots/mine.png", ".hidden"])
def test_what_no_run_wrote_is_never_replaced(tmp_path: Path, stranger: str, force: bool) -> None:
    save(tmp_path / "out", a="result", plots_b="result")
    (tmp_path / "out" / stranger).parent.mkdir(exist_ok=True)
    if stranger.endswith("/"):
        (tmp_path / "out" / stranger).mkdir()
    else:
        (tmp_path / "out" / stranger).write_text("precious")
    before = content(tmp_path)
    with pytest.raises(InputError, match=stranger if force else "is not empty"):
        save(tmp_path / "out", force=force, a="new")
    assert content(tmp_path) == before


def test_a_foreign_folder_is_never_replaced_whatever_its_files_are_called(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("precious")
    (tmp_path / "trace.yaml").write_text("precious")
    with pytest.raises(InputError, match="would be lost"):
        save(tmp_path, force=True, a="new")


def test_a_link_in_a_folder_is_not_what_a_run_wrote(tmp_path: Path) -> None:
    save(tmp_path / "out", a="result")
    (tmp_path / "out" / "elsewhere").symlink_to(tmp_path)
    with pytest.raises(InputError, match="elsewhere"):
        save(tmp_path / "out", force=True, a="new")


def test_what_comes_into_the_folder_meanwhile_is_not_lost(tmp_path: Path) -> None:
    def both() -> None:
        with Outputs() as outputs:
            (outputs.folder(tmp_path / "out") / "a").write_text("mine")
            save(tmp_path / "out", a="of another process")

    with pytest.raises(InputError, match="is not empty"):
        both()
    assert content(tmp_path) == {"out/a": "of another process"}


def test_the_folder_we_stand_in_is_filled_and_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    number = tmp_path.stat().st_ino
    save(Path(), a="old", plots_b="old")
    save(Path(), force=True, a="new", c="new")
    assert (content(tmp_path), tmp_path.stat().st_ino) == ({"a": "new", "c": "new"}, number)
    check_complete(tmp_path)


def test_a_folder_that_is_filled_is_not_complete_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = {"config.yaml": "old", "summary.json": "old"}
    save(Path(), **texts)

    def full(one: Path, other: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("blis_py.outputs.exchange.os.rename", full)
    with monkeypatch.context() as killed:
        killed.setattr(Outputs, "clear", lambda self: None)
        with pytest.raises(OSError, match="No space"):
            save(Path(), force=True, **texts)
    with pytest.raises(InputError, match="may not be complete"):
        check_complete(tmp_path)


def test_files_go_into_a_folder_that_is_written_with_them(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with Outputs() as outputs:
        folder = outputs.folder(tmp_path / "out")
        (folder / "a").write_text("1")
        outputs.file(tmp_path / "out" / "metrics.json").write_text("2")
    assert content(tmp_path / "out") == {"a": "1", "metrics.json": "2"}
    save(tmp_path / "out", force=True, a="new")


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "text")
    reader.join()
    assert read == ["text"]
    assert names(tmp_path) == ["pipe"]


def test_an_error_names_the_file_by_its_own_name(tmp_path: Path) -> None:
    def full(file: Path) -> None:
        with replacing(file):
            raise OSError(errno.ENOSPC, "No space left on device")

    def full_folder() -> None:
        with Outputs() as outputs:
            full(outputs.folder(tmp_path / "out") / "requests.csv")

    with pytest.raises(OSError, match="No space") as raised:
        full_folder()
    assert raised.value.filename == str(tmp_path / "out" / "requests.csv")
    with pytest.raises(OSError, match="No space") as raised:
        full(tmp_path / "file")
    assert raised.value.filename == str(tmp_path / "file")
    assert names(tmp_path) == []


# -- what killed processes leave ---------------------------------------------------------------------


def killed(work: Callable[[], None]) -> None:
    """Does it in a process that ends in the middle of it."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    def work() -> None:
        with Outputs() as outputs:
            (outputs.folder(tmp_path / "out") / "a").write_text("half")
            outputs.file(tmp_path / "file").write_text("half")
            os._exit(0)

    killed(work)
    assert len([name for name in names(tmp_path) if name.startswith(PREFIX)]) == 2
    assert len(names(tmp_path)) == 2
    save(tmp_path / "other", a="1")
    assert names(tmp_path) == ["other"]


def test_what_a_living_process_is_writing_stays(tmp_path: Path) -> None:
    with Outputs() as outputs:
        folder = outputs.folder(tmp_path / "out")
        killed(lambda: save(tmp_path / "other", a="1"))
        assert folder.is_dir()
    assert names(tmp_path) == ["other", "out"]


def test_a_replacement_that_was_killed_half_way_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_exchange(monkeypatch)
    save(tmp_path / "out", a="old")
    rename = os.rename

    def once(one: Path, other: Path) -> None:
        rename(one, other)
        os._exit(0)

    def work() -> None:
        exchange.os.rename = once  # type: ignore[attr-defined]
        save(tmp_path / "out", force=True, a="new")

    killed(work)
    assert not (tmp_path / "out").exists()
    writable(tmp_path / "out", force=True)
    assert names(tmp_path) == ["out"]
    assert content(tmp_path / "out") == {"a": "new"}
    check_complete(tmp_path / "out")


def test_a_replacement_that_the_system_refuses_half_way_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_exchange(monkeypatch)
    save(tmp_path / "out", a="old")
    rename = os.rename

    def refuse(one: Path, other: Path) -> None:
        if Path(other) == tmp_path / "out" and Path(one).name != exchange.FORMER:
            raise OSError(errno.EIO, "Input/output error")
        rename(one, other)

    monkeypatch.setattr(exchange.os, "rename", refuse)
    with pytest.raises(OSError, match="Input/output"):
        save(tmp_path / "out", force=True, a="new")
    assert content(tmp_path) == {"out/a": "old"}


# -- checked beforehand ------------------------------------------------------------------------------


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "out"):
        with pytest.raises(InputError, match="is a file"):
            writable(folder, force=True)


@pytest.mark.parametrize(("name", "problem"), [("", "must not be empty"), ("a" * 300, "is too long a name")])
def test_a_name_that_can_be_none_is_refused(name: str, problem: str) -> None:
    with pytest.raises(InputError, match=f"--out: {problem}"):
        writable(name, force=True)
    with pytest.raises(InputError, match=f"--out: {problem}"):
        check_folder(name, "--out")
    with pytest.raises(InputError, match=f"--report: {problem}"):
        check_file(name, "--report")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="nothing can be written"):
        writable(tmp_path / "out", force=False)


def test_an_empty_folder_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    save(tmp_path / "out", a="1")
    shutil.rmtree(tmp_path / "out")
    save(tmp_path / "out", a="1")
    assert content(tmp_path) == {"out/a": "1"}
