"""The CUDA C++ kernels: they compile for sm_90a without spills, and their absence is no error."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch

from engine.kernels.cuda import build, library


@pytest.fixture
def nvcc() -> str:
    try:
        return build.compiler()
    except build.BuildError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("source", build.sources(), ids=lambda path: path.name)
def test_every_kernel_compiles_for_sm_90a_without_spills(source: Path, nvcc: str, tmp_path: Path) -> None:
    output = ["-cubin", "-o", str(tmp_path / "kernels.cubin")]
    said = build.run([nvcc, *build.FLAGS, *output, build.ARCHITECTURES[0], "-Xptxas", "-v", source.name])
    frames = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", said)
    assert len(frames) == len(re.findall("Compiling entry function", said)) > 0
    assert set(frames) == {("0", "0", "0")}
    assert all(int(registers) <= 128 for registers in re.findall(r"Used (\d+) registers", said))


def test_every_declared_function_is_in_the_sources_with_as_many_arguments() -> None:
    text = "\n".join(path.read_text() for path in build.sources())
    found = {
        name: arguments.count(",") + 1 if arguments.strip() else 0
        for name, arguments in re.findall(r'extern "C" int (\w+)\(([^)]*)\)', text)
    }
    launches = {name: len(arguments) + 1 for name, arguments in library.LAUNCHES.items()}
    queries = {name: len(arguments) for name, arguments in library.QUERIES.items()}
    assert found == launches | queries


def test_the_cache_key_changes_with_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "run", lambda command: "release 1")
    first = build._key("nvcc")
    assert build._key("nvcc") == first
    monkeypatch.setattr(build, "run", lambda command: "release 2")
    assert build._key("nvcc") != first


def test_a_failing_build_says_why_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "FLAGS", ("--no-such-flag",))
    monkeypatch.setattr(build, "_key", lambda nvcc: "key")
    monkeypatch.setattr(build, "compiler", lambda: "/bin/false")
    with pytest.raises(build.BuildError, match="failed with status 1"):
        build.library()
    assert list(build.cache_folder().iterdir()) == []


def test_without_a_compiler_there_is_one_warning_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setenv("CUDACXX", "")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    library.available.cache_clear()
    library.load.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="nvcc was not found"):
            assert not library.available()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not library.available()
    finally:
        library.available.cache_clear()


def test_a_refused_launch_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        @staticmethod
        def blis_copy_pages(*arguments: object) -> int:
            return 700

    monkeypatch.setattr(library, "load", Refusing)
    with pytest.raises(library.LaunchError, match="blis_copy_pages was not launched: CUDA error 700"):
        library.launch("blis_copy_pages", torch.device("cpu"))


def test_a_kernel_refuses_tensors_it_would_misread() -> None:
    with pytest.raises(TypeError, match=r"contiguous torch\.int32 tensor, not a contiguous torch\.int64 one"):
        library.pointer(torch.zeros(2, dtype=torch.int64), torch.int32)
    with pytest.raises(TypeError, match=r"not a strided torch\.float32 one"):
        library.pointer(torch.zeros(4)[::2], torch.float32)
