"""Filling the caches ahead: under the keys that launches look for, whatever fails on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.kernels.warm import main

TINY = ["--target", "cuda:90", "--model", "engine/tiny/checkpoints/ar", "--block-size", "16"]

LAUNCHED = """
import sys, torch
from pathlib import Path
from triton import knobs
from engine.kernels import backend, dry_run, swiglu
from engine.kernels.gpu import HOPPER
from engine.kernels.warm import make

class Driver(dry_run._Driver):
    "A GPU on which every launch succeeds."
    launcher_cls = staticmethod(lambda source, metadata: lambda *arguments: None)
    class utils:
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": HOPPER.shared_bytes})
        load_binary = staticmethod(lambda *arguments: (None, None, 0, 0, 1024))

def kernels(folder):
    return sorted(path.name for path in Path(folder).iterdir())

x = torch.empty(3, 768, dtype=torch.bfloat16, device="meta")
with dry_run.recorded(HOPPER) as noted:
    swiglu(x)
knobs.cache.dir = sys.argv[1]
said = [make(variant.data, HOPPER) for variant in noted]
warmed = kernels(sys.argv[1])
said += [make(variant.data, HOPPER) for variant in noted]

dry_run._Driver = Driver
knobs.cache.dir = sys.argv[2]
with dry_run._driver(HOPPER, "launched"), backend.force("cuda"):
    swiglu(x)
print(said, len(warmed), warmed == kernels(sys.argv[2]))
"""


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: in this one Triton may have been imported for its interpreter.
    clean = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=clean | environment, capture_output=True, text=True, check=False, timeout=3000
    )


@pytest.mark.slow
def test_what_is_compiled_ahead_is_found_by_a_launch(tmp_path: Path) -> None:
    """The launch is Triton's own, up to the driver; what it compiles it keeps under the very same key."""
    done = python("-c", LAUNCHED, str(tmp_path / "ahead"), str(tmp_path / "launched"))
    assert done.returncode == 0, done.stderr
    without = ", without its launcher: no CUDA driver"
    assert done.stdout.replace(without, "") == "['compiled', 'was there'] 1 True\n"


@pytest.mark.slow
@pytest.mark.long
def test_what_fails_does_not_keep_the_rest_from_being_compiled(tmp_path: Path) -> None:
    """The CUDA compiler fails here, and the kernels of Triton are there all the same."""
    folders = {"TRITON_CACHE_DIR": str(tmp_path / "triton"), "XDG_CACHE_HOME": str(tmp_path)}
    done = python(
        *("-m", "engine.kernels.warm", *TINY, "--jobs", "1", "--only", "rms_norm|gated"),
        **folders,
        CUDACXX="/bin/false",
    )
    assert done.returncode == 1
    failed, *rows = done.stdout.splitlines()
    assert failed.startswith("FAILED")
    assert "CUDA C++ kernels: BuildError: /bin/false failed" in failed
    assert [row.split()[0] for row in rows] == ["ok"] * 3
    assert "4 in all, 1 failed" in done.stderr
    assert len(list((tmp_path / "triton").glob("*/*.cubin"))) == 3


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--target", "cuda:75"], "--target: unknown target (found 'cuda:75'); use one of cuda:80"),
        (["--target", "cuda:90", "--model", "no-such-model"], "neither a folder nor a bundled model"),
        ([*TINY, "--only", "no such kernel"], "--only: nothing to compile (found 'no such kernel')"),
        ([*TINY, "--only", "(moe"], "--only: no regular expression"),
        ([*TINY, "--jobs", "0"], "--jobs: must be at least 1"),
        ([*TINY, "--max-num-seqs", "0"], "max_num_seqs: must be at least 1"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("engine.variants.variants", lambda *of: ["a kernel"])
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    captured = capsys.readouterr()
    assert (stopped.value.code, captured.out) == (2, "")
    assert complaint in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there it is the default")
def test_without_a_gpu_the_target_must_be_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SystemExit):
        main([])
    assert (
        "there is no CUDA device; name what to compile for, as in --target cuda:90" in capsys.readouterr().err
    )
