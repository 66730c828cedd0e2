"""What the command line tells of itself: help, completion, and what there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Blis = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).resolve().parents[2]
VERBS = (
    "run",
    "replay",
    "serve",
    "observe",
    "plan",
    "sweep",
    "convert",
    "compose",
    "plot",
    "report",
    "ui",
    "explain",
    "compare",
    "calibrate",
    "parity",
    "models",
    "gpus",
    "engines",
    "profile",
    "engine",
)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["", *VERBS, "profile fit", "engine run", "engine bench"])
def test_h_is_help(verb: str, blis: Blis) -> None:
    if verb.startswith("engine"):
        pytest.importorskip("torch")
    code, out, err = blis(*verb.split(), "-h")
    assert (code, err) == (0, "")
    assert out == blis(*verb.split(), "--help")[1]
    assert "Usage: blis" in out


def test_brackets_in_help_are_brackets(blis: Blis) -> None:
    assert "'blis-py[engine]'" in blis("--help")[1]


def test_all_verbs_are_named_where_one_is_not_there(blis: Blis) -> None:
    there_are = f"there are {', '.join(VERBS)}\n"
    assert blis("xyzzy") == (2, "", f"error: no such command 'xyzzy'; {there_are}")
    assert blis("runn") == (2, "", "error: no such command 'runn'; did you mean run?\n")
    listed = blis("--help")[1]
    assert all(f"\n  {verb} " in listed for verb in VERBS)


def test_help_fits_a_terminal_of_80_columns_under_its_headings(
    blis: Blis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = blis("run", "--help-all")[1].splitlines()
    assert {"Run:", "Model and hardware:", "Scheduler:", "Workload:", "Output:"} <= set(lines)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("  --max-num-seqs N  ") for line in lines)
    assert not any("--max-num-running-reqs" in line for line in lines), "another spelling of it"


@pytest.mark.parametrize("verb", ["run", "replay", "plan", "sweep"])
def test_help_begins_with_the_usual_flags(verb: str, blis: Blis) -> None:
    lines = blis(verb, "-h")[1].splitlines()
    flags = [line.split()[0] for line in lines if line.startswith("  --")]
    assert len(flags) <= 38
    assert len(lines) <= 110
    assert {"--model", "--gpu", "--rate" if verb != "replay" else "--trace", "--slo"} <= set(flags)
    assert "--help-all" in lines[-1]
    assert len(blis(verb, "--help-all")[1].splitlines()) > 200


def test_help_has_the_flags_of_one_heading(blis: Blis) -> None:
    code, out, _ = blis("run", "-h", "scheduler")
    assert code == 0
    assert "--long-prefill-token-threshold" in out
    assert "--prompt-tokens" not in out
    code, _, err = blis("run", "-h", "xyz")
    assert code == 2
    assert err.startswith("error: -h: no such group of flags (found 'xyz'); there are run, model, ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_once(
    shell: str, blis: Blis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = blis("--show-completion", shell)[1]
    assert blis("--install-completion", shell)[0] == 0
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert file.read_text() == script
    assert blis("--install-completion", shell)[0] == 0
    assert file.read_text() == script
    assert blis("--show-completion", "cmd") == (
        2,
        "",
        "error: --show-completion: unknown shell (found 'cmd'); use bash, zsh, fish\n",
    )


@pytest.fixture
def complete(tmp_path: Path) -> Callable[[str], list[str]]:
    """What bash offers for the last word of a command line, by the script that blis itself prints."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    command = tmp_path / "blis"
    command.write_text(f'#!{bash}\nexec {sys.executable} -m blis_py "$@"\n')
    command.chmod(0o755)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
    }
    script = subprocess.run(
        ["blis", "--show-completion", "bash"], env=environment, capture_output=True, text=True, check=True
    ).stdout

    def ask(line: str) -> list[str]:
        words = line.split(" ")
        variables = f"COMP_WORDS=({' '.join(words)} '') COMP_CWORD={len(words) - 1}"
        if words[-1]:
            variables = f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}"
        program = f'{script}\n{variables}\n_blis_completion blis\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(
            [bash, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()

    return ask


@pytest.mark.slow
def test_a_shell_completes_verbs_and_flags(complete: Callable[[str], list[str]]) -> None:
    assert set(complete("blis ")) == set(VERBS)
    assert complete("blis repl") == ["replay"]
    assert complete("blis run --num-inst") == ["--num-instances"]
    assert complete("blis run --model qwen3-14b --goodp") == ["--goodput"]
    assert complete("blis profile va") == ["validate"]
    assert complete("blis profile fit --boot") == ["--bootstrap"]
    assert "run" in complete("blis engine ")
