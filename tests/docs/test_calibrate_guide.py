from __future__ import annotations

import re
import shlex
from contextlib import chdir
from pathlib import Path

import pytest

from blis_py.cli import main
from examples import ROOT

SMALLER = {"--rounds 5": "--quick", "--num-requests 60": "--num-requests 6"}


@pytest.mark.slow
def test_the_commands_that_measure_run_and_write_what_the_rest_of_the_guide_reads(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the engine needs the extra `engine`")
    guide = (ROOT / "docs" / "calibrate.md").read_text(encoding="utf-8")
    commands = re.findall(r"^```sh\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    (tmp_path / "engine").symlink_to(ROOT / "engine")
    with chdir(tmp_path):
        for command in commands:
            for full, small in SMALLER.items():
                command = command.replace(full, small)
            program, *arguments = shlex.split(command.replace("\\\n", " "))
            assert program == "blis"
            assert main(arguments) == 0
    recorded = ROOT / "docs" / "recorded"
    for folder in ("tiny-profile", "tiny-run"):
        assert {path.name for path in (tmp_path / folder).iterdir()} == {
            path.name for path in (recorded / folder).iterdir()
        }
