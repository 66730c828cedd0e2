"""Unhandled exceptions: one line on stderr, and the full report in a file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

Blis = Callable[..., tuple[int, str, str]]


def broken(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def simulate(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("blis_py.cluster.simulation.simulate", simulate)


def test_a_bug_is_one_line_and_a_file_with_the_traceback(
    blis: Blis, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    broken(monkeypatch, KeyError("two\nlines \udc80"))
    code, out, err = blis("run", *small)
    assert (code, out) == (1, "")
    (file,) = tmp_path.iterdir()
    report = err.splitlines()[2:]
    assert len(report) == 1
    assert report[0].startswith("error: a bug in blis-py: KeyError: ")
    assert report[0].endswith(f"; please report it with the file {file}")
    text = file.read_text()
    assert "Traceback (most recent call last)" in text
    assert "in simulate" in text
    assert text.startswith("blis-py ")


@pytest.mark.parametrize(
    "spelling", [["--api-key", "s3cr\\et"], ["--api-key=s3cr\\et"], ["--api_key", "s3cr\\et"], []]
)
def test_a_report_has_no_key(
    blis: Blis,
    small: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    spelling: list[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["blis", "serve", *spelling, "--port", "1"])
    monkeypatch.setenv("OPENAI_API_KEY", "other-key")
    if not spelling:
        monkeypatch.setenv("BLIS_API_KEY", "s3cr\\et")
    broken(monkeypatch, ValueError("no header s3cr\\et or other-key"))
    _, _, err = blis("run", *small)
    (file,) = tmp_path.iterdir()
    for text in (err, file.read_text()):
        assert "no header *** or ***" in text
        assert "s3cr" not in text
        assert "other-key" not in text
    assert "'--port', '1'" in file.read_text()


@pytest.mark.parametrize(
    "given", [["--launch-env", "HF_TOKEN=s3cret"], ["--launch-env=vllm_api_key=s3cret"], []]
)
def test_a_report_has_no_secret_of_a_launch_line_or_the_environment(
    blis: Blis, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: list[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["blis", "run", *given, "--launch-env", "TP=4"])
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    if not given:
        monkeypatch.setenv("AWS_SECRET", "s3cret")
    broken(monkeypatch, ValueError("s3cret is false"))
    _, _, err = blis("run", *small)
    (file,) = tmp_path.iterdir()
    for text in (err, file.read_text()):
        assert "*** is false" in text
        assert "s3cret" not in text
    assert "'TP=4'" in file.read_text()


def test_where_no_file_can_be_written_it_states_how_to_see_the_traceback(
    blis: Blis, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    broken(monkeypatch, ValueError("odd"))
    code, _, err = blis("run", *small)
    assert code == 1
    assert "BLIS_DEBUG=1" in err.splitlines()[-1]
    monkeypatch.setenv("BLIS_DEBUG", "1")
    code, _, err = blis("run", *small)
    assert code == 1
    assert "Traceback (most recent call last)" in err
    assert err.splitlines()[-1] == "error: a bug in blis-py: ValueError: odd; please report it"


def test_too_little_memory_is_no_bug(
    blis: Blis, small: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, MemoryError("unable to allocate 8 TiB"))
    code, out, err = blis("run", *small)
    assert (code, out) == (1, "")
    assert err.splitlines()[2:] == ["error: not enough memory: unable to allocate 8 TiB"]
