"""The release: what a wheel may contain, and what is not done twice."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "release"))

import release

WHOLE = (
    *("blis_py/__init__.py", "blis_py/py.typed", "blis_engine/__init__.py", "blis_py-1.dist-info/METADATA"),
    "blis_py-1.dist-info/licenses/NOTICE.md",
)


def wheel(folder: Path, *names: str, tag: str = "cp311-cp311-linux_x86_64") -> Path:
    folder.mkdir(exist_ok=True)
    place = folder / f"blis_py-1-{tag}.whl"
    with zipfile.ZipFile(place, "w") as file:
        for name in names:
            file.writestr(name, "")
    return place


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ((*WHOLE, "tests/test_x.py"), "installs blis_engine, blis_py, tests"),
        ((*WHOLE, "blis_engine/tiny/checkpoints/ar/model.safetensors"), "has checkpoints"),
        (tuple(name for name in WHOLE if "NOTICE" not in name), "has no NOTICE.md"),
        (tuple(name for name in WHOLE if "typed" not in name), "no py.typed"),
    ],
)
def test_a_wheel_installs_two_packages_with_types_and_without_checkpoints(
    names: tuple[str, ...], problem: str, tmp_path: Path
) -> None:
    assert release.contents(wheel(tmp_path, *WHOLE)) == []
    (found,) = release.contents(wheel(tmp_path, *names))
    assert problem in found


class Machine:
    """Interpreters, one of which may be unable to build; counts what is built."""

    def __init__(self, patch: pytest.MonkeyPatch, out: Path, broken: str = "") -> None:
        self.built: list[str] = []
        """Interpreters of the wheels with native code."""
        self.broken, self.out = broken, out
        patch.setattr(release, "_path", lambda python: python)
        patch.setattr(release, "_sources", lambda: "sources")
        patch.setattr(release, "build", self.build)
        patch.setattr(release, "run", lambda scratch, wheel: "digest")
        patch.setattr(release, "_call", lambda *words, **more: "")
        self.patch = patch

    def build(self, python: str, out: Path, *, pure: bool = False) -> Path:
        if pure:
            return wheel(out, *WHOLE, tag="py3-none-any")
        if self.broken:
            self.broken = ""
            raise subprocess.CalledProcessError(1, ["pip", "wheel"])
        self.built.append(python)
        return wheel(out, *WHOLE)

    def release(self, *pythons: str) -> int:
        self.patch.setattr(sys, "argv", ["release", "--out", str(self.out), "--python", *pythons])
        return release.main()


def test_what_was_built_of_the_same_sources_is_not_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, tmp_path / "dist")
    assert machine.release("a") == machine.release("a") == 0
    assert len(machine.built) == 1
    monkeypatch.setattr(release, "_sources", lambda: "others")
    assert machine.release("a") == 0
    assert len(machine.built) == 2


def test_a_wheel_whose_run_was_stopped_is_only_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path / "dist")

    def stopped(scratch: str, wheel: Path) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(release, "run", stopped)
        with pytest.raises(KeyboardInterrupt):
            machine.release("a")
    assert machine.release("a") == 0
    assert len(machine.built) == 1


def test_a_wheel_that_is_gone_is_built_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path / "dist")
    machine.release("a")
    for file in (tmp_path / "dist").glob("*linux*.whl"):
        file.unlink()
    assert machine.release("a") == 0
    assert len(machine.built) == 2


def test_where_one_interpreter_cannot_build_the_others_do_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine = Machine(monkeypatch, tmp_path / "dist", broken="a")
    assert machine.release("a", "b") == 1
    assert machine.built == ["b"]
    assert "error: a: pip wheel: exit code 1" in capsys.readouterr().err


def test_runs_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine, digests = Machine(monkeypatch, tmp_path / "dist"), iter("xyx")
    monkeypatch.setattr(release, "run", lambda scratch, wheel: next(digests))
    assert machine.release("a", "b") == 1


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A commit of version 1.2 whose wheels all run."""
    place = tmp_path / "repository"
    (place / "blis_py").mkdir(parents=True)
    (place / "blis_py" / "version.py").write_text('__version__ = "1.2"\n')
    (place / "CHANGELOG.md").write_text("## Unreleased\n\n## 1.2\n\n## 1.0\n")
    call = release._call
    Machine(monkeypatch, tmp_path / "dist")
    monkeypatch.setattr(release, "ROOT", place)
    git = lambda *words, **more: call(*words, cwd=place) if words[0] == "git" else ""  # noqa: E731
    monkeypatch.setattr(release, "_call", git)
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@b")
    git("git", "init", "--quiet")
    commit("one")
    return place


def commit(message: str) -> None:
    release._call("git", "add", ".")
    release._call("git", "commit", "--quiet", "--allow-empty", "--message", message)


def release_with(flag: str, monkeypatch: pytest.MonkeyPatch, repository: Path) -> int:
    words = ["release", "--out", str(repository.parent / "dist"), "--python", "a", flag]
    monkeypatch.setattr(sys, "argv", words)
    return release.main()


def test_a_release_is_the_commit_with_the_tag_of_its_version(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release_with("--check-tag", monkeypatch, repository) == 1
    assert "this commit has no tag v1.2" in capsys.readouterr().err
    assert release_with("--tag", monkeypatch, repository) == 0
    assert release._tags() == ["v1.2"]
    assert release_with("--tag", monkeypatch, repository) == 0
    assert release_with("--check-tag", monkeypatch, repository) == 0
    commit("two")
    assert release_with("--tag", monkeypatch, repository) == 1
    assert "another commit is v1.2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("CHANGELOG.md", "## 1.2.1\n", "CHANGELOG.md has no section 1.2"),
        ("blis_py/other.py", "", ""),
        ("CHANGELOG.md", "## 1.2\n", "there are changes that are not committed"),
    ],
)
def test_what_is_not_a_version_gets_no_tag(
    file: str,
    text: str,
    problem: str,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (repository / file).write_text(text)
    assert release_with("--tag", monkeypatch, repository) == (1 if problem else 0)
    assert problem in capsys.readouterr().err
    assert release._tags() == ([] if problem else ["v1.2"])


def test_the_notes_of_a_release_are_its_section(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "CHANGELOG.md").write_text(
        "# Changes\n\n## Unreleased\n\n- x\n\n## 1.2 (day)\n\n- y\n\n## 1.0\n- z\n"
    )
    assert release_with("--notes", monkeypatch, repository) == 0
    assert capsys.readouterr().out == "- y\n"
    assert (release.notes("1.0"), release.notes("1")) == ("- z\n", None)


def test_a_wheel_has_every_result_that_the_program_reads() -> None:
    """Without one, plans of an installed program would draw errors from fewer runs than in a checkout."""
    root = Path(__file__).resolve().parents[2]
    sources = [path.read_text(encoding="utf-8") for path in (root / "blis_py").rglob("*.py")]
    readers = [text for text in sources if "read_result(" in text]
    read = {name for text in readers for name in re.findall(r'"(\w+\.json)"', text)}
    assert read >= {"real_engines.json", "accuracy.json", "open_loops.json", "left_out.json"}
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    files = {f"benchmarks/results/{name}" for name in read}
    assert files <= set(build["sdist"]["only-include"])
    assert files <= build["wheel"]["force-include"].keys()
