"""Which revision it is, with git or without."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine import revision as module
from engine.revision import TREE

GIT = ["git", "-c", "user.name=x", "-c", "user.email=x@example.com"]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module in its package, and no repository around it."""
    monkeypatch.delenv("GPU_REVISION", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "copy"
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "__init__.py").write_text("")
    (folder / "blis_py").mkdir()
    shutil.copy(module.__file__, folder / "engine" / "revision.py")
    return folder


def prefix(folder: Path) -> str:
    """The revision without the hash of the tree behind it."""
    return whole(folder).partition(TREE)[0].strip()


def whole(folder: Path) -> str:
    code = "from engine.revision import revision; print(revision())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit(folder: Path) -> str:
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*GIT, *command], cwd=folder, check=True)
    done = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_without_a_repository_a_file_or_the_environment_knows(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prefix(copy) == ""
    (copy / "REVISION").write_text("v1-5-gabc\n")
    assert prefix(copy) == "v1-5-gabc"
    monkeypatch.setenv("GPU_REVISION", "v2")
    assert prefix(copy) == "v2"


def test_a_checkout_is_its_commit_and_states_whether_files_were_changed_since(copy: Path) -> None:
    found = commit(copy)
    (copy / "REVISION").write_text("of some export")
    assert prefix(copy) == found
    (copy / "engine" / "revision.py").write_text((copy / "engine" / "revision.py").read_text() + "\n")
    assert prefix(copy) == f"{found}-changed"


def test_whatever_the_name_code_that_was_mended_is_another_revision(copy: Path) -> None:
    """Where there is no repository, a name stays as it was when a file is changed."""
    (copy / "REVISION").write_text("v1")
    before = whole(copy)
    assert before.startswith(f"v1 {TREE}")
    (copy / "engine" / "new.py").write_text("x = 1\n")
    mended = whole(copy)
    assert mended != before
    (copy / "engine" / "new.py").rename(copy / "engine" / "other.py")
    assert whole(copy) not in (before, mended), "names of files count"
    (copy / "engine" / "other.py").unlink()
    (copy / "engine" / "notes.txt").write_text("no source")
    assert whole(copy) == before


def test_another_repository_around_a_copy_gives_no_revision(copy: Path) -> None:
    (copy.parent / "file").write_text("")
    commit(copy.parent)
    assert prefix(copy) == ""
