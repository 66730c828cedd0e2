"""The simulator's inner loop as native code: used only while it is up to date, and the same to the byte."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import pkgutil
import runpy
import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blis_py import native
from blis_py.native import build

ROOT = Path(__file__).resolve().parents[2]
QWEN = "--model qwen3-14b --gpu h100 --format json"
COMMANDS = {
    "preemption by priority": f"run --workload mixed-slo --num-requests 600 {QWEN} --num-instances 2 "
    "--scheduler priority-fcfs --preemption-policy priority --num-kv-blocks 3000",
    "chunks, prefill first": f"run --workload chat --num-requests 300 {QWEN} --rate 30 --num-kv-blocks 3000 "
    "--batch-former prefill-first --max-num-batched-tokens 300 --latency-model roofline",
    "radix": f"run --workload rag --num-requests 200 {QWEN} --num-instances 2 --scheduler lpm "
    "--prefix-cache radix",
    "hashed prefixes": f"run --workload multi-turn-chat --num-requests 200 {QWEN} --num-kv-blocks 4000",
    "measured": "run --profile profiles/fits/cpu/tiny-ar --rate 30 --num-requests 200 --prompt-tokens 60 "
    "--output-tokens 40 --num-kv-blocks 200 --format json --routing-policy least-loaded --num-instances 3",
    "asynchronous scheduling": f"run --num-requests 300 {QWEN} --rate 60 --output-tokens 200 "
    "--async-scheduling --num-instances 2 --num-kv-blocks 3000 --timeout 8 --eos-share 0.3",
    "block diffusion": "run --workload diffusion-tiny --num-requests 60 --format json "
    "--profile profiles/fits/cpu/tiny-diffusion --max-num-seqs 8 --max-num-batched-tokens 512",
}


BEYOND_THE_CLOCK = {
    "the sum of steps": "--beta-coeffs 1,1,3e9,1,1,1,1",
    "a step": "--beta-coeffs 1e12,1e12,1e12,1e12,1e12,1e12,1e12",
    "a long context": "--beta-coeffs 0,1e11,0,0,0,0,1",
}
"""Flags of `run`, with which step times go beyond the clock."""


END = "-- end of a command --"
EVERY = f"""
import sys
import blis_py
blis_py.run
from blis_py.cli import main
for line in sys.argv[1:]:
    main(line.split())
    print({END!r}, end="", flush=True)
"""
"""Command lines in one process."""


def ended(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **environment}
    command = [sys.executable, *words]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)


def output(words: list[str], environment: dict[str, str]) -> bytes:
    """What a Python process prints."""
    done = ended(words, environment)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def compiled_code(home: Path) -> None:
    """Native code in `home`: a copy of the checkout's if that is up to date, as after `make native`."""
    if not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")):
        pytest.skip("there is no C compiler")
    if not (importlib.util.find_spec("mypyc") and importlib.util.find_spec("setuptools")):
        pytest.skip("mypyc or setuptools is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("BLIS_INTERPRETED", raising=False)
        if native.current():
            shutil.copytree(native.folder(), home)
    if not home.exists():
        output(["-m", "blis_py.native"], {"BLIS_NATIVE": str(home), "BLIS_INTERPRETED": ""})


@pytest.mark.slow
def test_native_code_does_the_same(tmp_path: Path) -> None:
    """All in one test, since compiling takes a minute."""
    compiled = {"BLIS_NATIVE": str(tmp_path / "code"), "BLIS_INTERPRETED": ""}
    interpreted = {**compiled, "BLIS_INTERPRETED": "1"}
    compiled_code(tmp_path / "code")

    where = "from blis_py import native; native.activate(); from blis_py.core import kv; print(kv.__file__)"
    assert output(["-c", where], compiled).decode().startswith(compiled["BLIS_NATIVE"])
    assert output(["-c", where], interpreted).decode().strip() == str(ROOT / "blis_py" / "core" / "kv.py")

    python = "import blis_py; blis_py.run; from blis_py.core import kv; print(kv.__file__)"
    assert output(["-c", python], compiled).decode().startswith(compiled["BLIS_NATIVE"])

    mixed = "from blis_py.core import kv; from blis_py import native; print(native.activate())"
    assert output(["-c", mixed], compiled) == b"False\n"

    beyond = [
        f"run --model qwen3-14b --timeout -1 --alpha-coeffs 1,2,3 {f}" for f in BEYOND_THE_CLOCK.values()
    ]
    lines = ["-c", EVERY, *COMMANDS.values(), *beyond]
    one, other = (ended(lines, how) for how in (compiled, interpreted))
    assert (one.stdout, one.stderr) == (other.stdout, other.stderr)
    reports = one.stdout.decode().split(END)[:-1]
    for name, report in zip(COMMANDS, reports[: len(COMMANDS)], strict=True):
        assert json.loads(report)["cluster"]["requests"]["completed"] > 0, name
    assert reports[len(COMMANDS) :] == [""] * len(beyond)
    assert one.stderr.count(b"longer than a century") == len(beyond)

    command = ["-m", "blis_py", *next(iter(COMMANDS.values())).split()]
    report = output(command, compiled)
    assert report.decode() == reports[0]

    there = {"PYTHONPATH": str(ROOT)}
    for program in ("step_feature.py", "natively.py"):
        words = [str(ROOT / "tests" / "extension" / program)]
        native = ended(words, compiled | there)
        assert (native.returncode, native.stderr) == (0, b"native\n")
        found = native.stdout
        assert max(json.loads(found).get("waiting_tokens", [1])) > 0
        assert found == output(words, interpreted | there), program

    largest = max(Path(compiled["BLIS_NATIVE"]).rglob("*.so"), key=lambda path: path.stat().st_size)
    for damaged in (largest.read_bytes()[: largest.stat().st_size // 2], bytes(largest.stat().st_size), b""):
        largest.write_bytes(damaged)
        assert report == output(command, compiled), "with a library that is cut or overwritten"


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The manifest of a translation in `tmp_path` that is up to date: of one module, or so it says."""
    monkeypatch.setenv("BLIS_NATIVE", str(tmp_path))
    monkeypatch.delenv("BLIS_INTERPRETED", raising=False)
    assert native.current() == {}
    (tmp_path / "kv.so").write_bytes(b"machine code")
    manifest = {
        "sources": native.digests(),
        "files": {"blis_py.core.kv": "kv.so"},
        "digests": {"kv.so": sha256(b"machine code").hexdigest()},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return manifest


def test_a_translation_of_other_sources_is_not_used(made: dict[str, Any], tmp_path: Path) -> None:
    assert native.current() == {"blis_py.core.kv": str(tmp_path / "kv.so")}
    made["sources"] = {**made["sources"], "core.kv": "of a former version"}
    (tmp_path / "manifest.json").write_text(json.dumps(made))
    assert native.current() == {}


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize("content", [b"machine code and more", b"machine", b"", b"mAchine code", None])
def test_a_library_that_is_not_as_it_was_made_is_not_used(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is None:
        (tmp_path / "kv.so").unlink()
    else:
        (tmp_path / "kv.so").write_bytes(content)
    monkeypatch.setattr(native, "MODULES", ())
    monkeypatch.setattr(
        native, "digests", lambda: json.loads((tmp_path / "manifest.json").read_text())["sources"]
    )
    assert native.activate() is False
    report = capsys.readouterr().err
    assert report.startswith(f"note: the native code is damaged ({tmp_path / 'kv.so'}); interpreted, until ")
    assert report.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "null", '{"sources": 1}', "[" * 100_000], ids=len)
def test_a_damaged_manifest_is_reported(text: str, made: dict[str, Any], tmp_path: Path) -> None:
    if text == '{"sources": 1}':
        text = json.dumps({"sources": made["sources"], "files": 1, "digests": {}})
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(native.Damaged, match=r"manifest\.json"):
        native.current()


def test_translating_does_not_read_what_packages_gather(tmp_path: Path) -> None:
    """The face of the whole package leads to nearly everything, which takes mypy minutes."""
    copies = build._sources(tmp_path)
    faces = [path for path in copies.rglob("*.py") if path.name == "__init__.py"]
    assert copies / "blis_py" / "__init__.py" in faces
    assert {path.read_text() for path in faces} == {""}
    kv = Path("blis_py", "core", "kv.py")
    assert (copies / kv).read_text() == (ROOT / kv).read_text()


def test_libraries_of_a_former_translation_go(tmp_path: Path) -> None:
    for name in ("core/kv.so", "core/gone.so", "old.so", "manifest.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    build._tidy_up(tmp_path, ["core/kv.so"])
    assert {path.name for path in tmp_path.rglob("*.*")} == {"kv.so", "manifest.json"}


def test_without_a_compiler_it_stays_interpreted(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "BLIS_NATIVE": str(tmp_path),
        "BLIS_INTERPRETED": "",
        "CC": "no-such-compiler",
    }
    command = [sys.executable, "-m", "blis_py.native"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "stays interpreted: CC: there is no C compiler (found 'no-such-compiler')" in done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_a_compiler_that_fails_is_reported_in_one_line_also_of_an_installed_package(tmp_path: Path) -> None:
    """There other packages lie beside it, of which none is to be translated: mypy complains of this one."""
    if not (importlib.util.find_spec("mypyc") and importlib.util.find_spec("setuptools")):
        pytest.skip("mypyc or setuptools is not installed")
    if not shutil.which("false"):
        pytest.skip("there is no `false` to stand for a compiler")
    home, installed = tmp_path / "code", tmp_path / "site-packages"
    shutil.copytree(ROOT / "blis_py", installed / "blis_py", ignore=shutil.ignore_patterns("cpython-*"))
    library = importlib.util.find_spec("typing_extensions")
    assert library is not None
    shutil.copy(str(library.origin), installed)
    home.mkdir()
    (home / "manifest.json").write_text("of a former version")
    environment = {**os.environ, "BLIS_NATIVE": str(home), "CC": "false", "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "blis_py.native"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    report = done.stderr.splitlines()[-1]
    assert report.endswith(f"stays interpreted: {home / 'failed.log'}: compiling failed; see what it says")
    log = (home / "failed.log").read_text()
    assert "shadows library module" not in log
    assert "returned non-zero exit status" in log
    assert not (home / "manifest.json").exists()


# -- in a wheel ------------------------------------------------------------------------------------------


class Hook:
    """What hatchling gives its hooks."""

    root = str(ROOT)

    def __init__(self) -> None:
        self.app = self
        self.warnings: list[str] = []

    def display_warning(self, text: str) -> None:
        self.warnings.append(text)


def with_the_hook(monkeypatch: pytest.MonkeyPatch, version: str = "standard") -> tuple[Hook, dict[str, Any]]:
    """The hook after it has listed the contents of a wheel, and that list."""
    place = "hatchling.builders.hooks.plugin.interface"
    metadata = "hatchling.metadata.plugin.interface"
    monkeypatch.setitem(sys.modules, place, SimpleNamespace(BuildHookInterface=Hook))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, metadata, SimpleNamespace(MetadataHookInterface=Hook))  # type: ignore[arg-type]
    for parent in (
        "hatchling",
        "hatchling.builders",
        "hatchling.builders.hooks",
        "hatchling.builders.hooks.plugin",
        "hatchling.metadata",
        "hatchling.metadata.plugin",
    ):
        monkeypatch.setitem(sys.modules, parent, SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "path", list(sys.path))
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["WheelHook"]()
    hook._add_engine = lambda folder, said: None
    said: dict[str, Any] = {"pure_python": True, "infer_tag": False, "force_include": {}}
    hook.initialize(version, said)
    hook.finalize(version, said, "")
    return hook, said


@pytest.mark.usefixtures("made")
def test_a_wheel_contains_the_native_code_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, said = with_the_hook(monkeypatch)
    home = f"blis_py/native/{sys.implementation.cache_tag}"
    assert said["force_include"] == {
        str(tmp_path / name): f"{home}/{name}" for name in ("kv.so", "manifest.json")
    }
    assert (said["pure_python"], said["infer_tag"]) == (False, True)


def test_without_a_compiler_a_wheel_is_pure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BLIS_NATIVE", str(tmp_path / "nothing"))
    monkeypatch.setenv("CC", "no-such-compiler")
    hook, said = with_the_hook(monkeypatch)
    assert said == {"pure_python": True, "infer_tag": False, "force_include": {}}
    assert hook.warnings[0].startswith("a wheel without native code: CC: there is no C compiler")


@pytest.mark.usefixtures("made")
def test_an_installation_in_place_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_the_hook(monkeypatch, "editable")[1]["force_include"] == {}


def classes_of(name: str) -> list[type]:
    module = importlib.import_module(name)
    return [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == name]


def is_open(cls: type) -> bool:
    """Whether a translated class is marked as one that interpreted classes may derive from."""
    marks = inspect.getsource(cls).split("class ", 1)[0]
    return "allow_interpreted_subclasses=True" in marks


def test_no_interpreted_class_derives_from_a_translated_one() -> None:
    """Which mypyc does not permit: such a class fails where it is defined."""
    translated = {f"blis_py.{name}" for name in native.MODULES}
    packages = [f"blis_py.{name}" for name in ("core", "latency", "cluster", "metrics", "workload", "traces")]
    modules = [
        f"{package}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
    ]
    derived = {
        f"{cls.__module__}.{cls.__name__}"
        for name in set(modules) - translated
        for cls in classes_of(name)
        if any(base.__module__ in translated and not is_open(base) for base in cls.__mro__[1:])
    }
    assert derived == set()


def test_every_module_is_there() -> None:
    assert set(native.digests()) == set(native.MODULES)
