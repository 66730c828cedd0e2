"""Compiled kernels travel to another machine, and are found there."""

from __future__ import annotations

import json
import random
from pathlib import Path

import caches
import pytest


def kernel(cache: Path, key: str = "KEY", size: int = 1000) -> Path:
    """A kernel as Triton keeps it; returns its folder."""
    folder = cache / caches.TRITON / key
    folder.mkdir(parents=True)
    files = {"k.json": b"{}", "k.cubin": random.Random(key).randbytes(size), "k.ttir": b"text" * 100}
    for name, content in files.items():
        (folder / name).write_bytes(content)
    paths = {name: str(folder / name) for name in files}
    (folder / "__grp__k.json").write_text(json.dumps({"child_paths": paths}))
    return folder


def test_triton_finds_kernels_that_were_unpacked_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = pytest.importorskip("triton.runtime.cache")
    here, out, there = tmp_path / "here", tmp_path / "out", tmp_path / "there"
    out.mkdir()
    source = kernel(here)
    assert "packed 3 files" in caches.pack(here, out)
    for path in source.iterdir():
        path.unlink()
    assert "unpacked 3 files" in caches.unpack(out, there)
    monkeypatch.setenv("TRITON_CACHE_DIR", caches.environment(there)["TRITON_CACHE_DIR"])
    found = manager.FileCacheManager("KEY").get_group("k.json")
    assert sorted(found) == ["k.cubin", "k.json"], "not the stages of its compilation"
    assert all(Path(path).is_file() and there in Path(path).parents for path in found.values())


def test_the_cuda_library_travels_with_them(tmp_path: Path) -> None:
    here, out, there = tmp_path / "here", tmp_path / "out", tmp_path / "there"
    out.mkdir()
    library = here / caches.LIBRARY / "blis_kernels_0.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"machine code")
    caches.pack(here, out)
    caches.unpack(out, there)
    assert (there / caches.LIBRARY / "blis_kernels_0.so").read_bytes() == b"machine code"
    assert caches.environment(there)["XDG_CACHE_HOME"] == str(there)


def test_a_machine_that_has_kernels_keeps_its_own(tmp_path: Path) -> None:
    here, out = tmp_path / "here", tmp_path / "out"
    out.mkdir()
    kernel(here)
    caches.pack(here, out)
    assert caches.unpack(out, here) == ""
    assert caches.unpack(tmp_path / "nothing", tmp_path / "there") == ""


def test_what_is_too_large_for_one_file_comes_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, out, there = tmp_path / "here", tmp_path / "out", tmp_path / "there"
    out.mkdir()
    monkeypatch.setattr(caches, "PIECE_BYTES", 4000)
    kernel(here, "ONE", 6000)
    caches.pack(here, out)
    assert sorted(path.name for path in out.iterdir()) == ["caches.tar.gz.0", "caches.tar.gz.1"]
    assert all(path.stat().st_size <= 4000 for path in out.iterdir())
    assert "unpacked 3" in caches.unpack(out, there)
    kernel(here, "TWO", 6000)
    assert "too many to carry" in caches.pack(here, out)


def test_a_damaged_pack_is_reported_and_does_no_harm(tmp_path: Path) -> None:
    here, out, there = tmp_path / "here", tmp_path / "out", tmp_path / "there"
    out.mkdir()
    kernel(here)
    caches.pack(here, out)
    piece = out / "caches.tar.gz.0"
    piece.write_bytes(piece.read_bytes()[:-200])
    assert "cannot be read" in caches.unpack(out, there)


def test_half_written_kernels_stay_behind(tmp_path: Path) -> None:
    half = tmp_path / caches.TRITON / "KEY" / "tmp.pid_7_x"
    half.mkdir(parents=True)
    (half / "k.cubin").write_bytes(b"hal")
    assert not caches.content(tmp_path)
    assert caches.pack(tmp_path, tmp_path) == "no kernels were compiled"
