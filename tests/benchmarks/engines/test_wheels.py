"""Wheels of engines: cached, checked, and a note where one cannot be had; no network."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from benchmarks.engines import wheels
from blis_py.errors import InputError

KEPT = ("vllm/v1/",)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BLIS_ENGINES_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A wheel in place of a download; returns its digest."""
    wheel = tmp_path / "vllm-0.15.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/v1/scheduler.py", "vllm/v1/kernel.so", "vllm/other.py"):
            archive.writestr(name, "x = 1\n")
    monkeypatch.setattr(wheels, "_downloaded", lambda package, version, folder: wheel)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_a_wheel_that_cannot_be_had_is_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wheels, "_run", lambda command: None)
    assert wheels.unpacked("vllm", "0.15", KEPT) is None
    assert wheels.unpacked("vllm", "newest", KEPT) is None
    assert "vllm 0.15.1: skipped, its wheel cannot be downloaded here" in capsys.readouterr().err


def test_only_python_of_the_kept_parts_is_unpacked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = served(tmp_path, monkeypatch)
    monkeypatch.setattr(wheels, "pinned", lambda package: {"0.15.1": digest})
    wheel = wheels.unpacked("vllm", "0.15", KEPT)
    assert wheel == ("0.15.1", cache / "vllm-0.15.1")
    files = [path.relative_to(wheel.root) for path in wheel.root.rglob("*") if path.is_file()]
    assert files == [Path("vllm/v1/scheduler.py")]
    assert [path.name for path in cache.iterdir()] == ["vllm-0.15.1"]
    monkeypatch.setattr(wheels, "_downloaded", None)  # once is enough
    assert wheels.unpacked("vllm", "0.15.1", KEPT) == wheel


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served(tmp_path, monkeypatch)
    with pytest.raises(InputError, match=r"not the pinned one"):
        wheels.unpacked("vllm", "0.15", KEPT)


def test_a_release_without_a_pin_is_used_with_its_hash_as_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = served(tmp_path, monkeypatch)
    assert wheels.unpacked("vllm", "0.99.0", KEPT) is not None
    assert f"not pinned, its SHA-256 is {digest}" in capsys.readouterr().err


def test_every_release_that_is_compared_has_a_pin() -> None:
    from benchmarks.engines.registry import ENGINES

    for engine in ENGINES.values():
        pins = wheels.pinned(engine.package)
        for version in {*engine.releases, *engine.gated} - {wheels.NEWEST}:
            assert wheels.full_version(engine.package, version) in pins
        assert all(len(digest) == 64 for digest in pins.values())
