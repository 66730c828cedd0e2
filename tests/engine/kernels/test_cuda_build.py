"""The CUDA C++ kernels: they compile for sm_90a without spills, and their absence is no error."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.kernels import compilations
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


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where the library will be; a GPU of the right kind is there, and nothing is loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    cached = library.available, library.load
    for function in cached:
        function.cache_clear()
    yield build.library()
    for function in cached:
        function.cache_clear()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACXX", "")
    monkeypatch.setattr(build.shutil, "which", lambda name: None)


def shared_object(path: Path) -> None:
    """One with every function that the library has, which do nothing."""
    compiler = shutil.which("gcc") or pytest.skip("gcc is not installed")
    text = "".join(f"int {name}() {{ return 0; }}\n" for name in library.LAUNCHES | library.QUERIES)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-shared", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)


def test_the_library_of_other_sources_flags_or_machines_is_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {build.library().name}
    monkeypatch.setattr(build, "FLAGS", ("-O0",))
    names.add(build.library().name)
    monkeypatch.setattr(build.platform, "machine", lambda: "another")
    names.add(build.library().name)
    (tmp_path / "one.cu").write_text("")
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    names.add(build.library().name)
    assert len(names) == 4


@pytest.mark.usefixtures("no_compiler")
def test_a_library_that_was_built_elsewhere_is_used_without_a_compiler(empty_cache: Path) -> None:
    shared_object(empty_cache)
    before = compilations.so_far()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert library.available()
    counted = compilations.so_far() - before
    assert (counted.compiled, counted.loaded) == (0, 1)


def test_a_library_that_does_not_load_here_is_built_here(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty_cache.parent.mkdir(parents=True)
    empty_cache.write_text("built for another system")
    monkeypatch.setattr(build, "build_library", lambda: shared_object(empty_cache))
    before = compilations.so_far()
    assert library.available()
    counted = compilations.so_far() - before
    assert (counted.compiled, counted.loaded) == (1, 0)


@pytest.mark.usefixtures("no_compiler")
def test_a_library_that_does_not_load_here_and_cannot_be_built_is_named_in_the_warning(
    empty_cache: Path,
) -> None:
    empty_cache.parent.mkdir(parents=True)
    empty_cache.write_text("built for another system")
    with pytest.warns(RuntimeWarning, match=rf"{empty_cache.name} does not load here .*nvcc was not found"):
        assert not library.available()


def test_a_failing_build_states_why_and_leaves_nothing_behind(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "compiler", lambda: "/bin/false")
    with pytest.raises(build.BuildError, match="failed with status 1"):
        build.build_library()
    assert list(empty_cache.parent.iterdir()) == []


@pytest.mark.usefixtures("no_compiler", "empty_cache")
def test_without_a_compiler_there_is_one_warning_and_no_error() -> None:
    with pytest.warns(RuntimeWarning, match="nvcc was not found"):
        assert not library.available()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not library.available()


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
