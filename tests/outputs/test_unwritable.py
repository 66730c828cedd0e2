"""Where nothing can be written is known before anything is done."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from blis_py.errors import InputError
from blis_py.outputs.places import check_file, check_folder, writable

ODD = pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")


@ODD
@pytest.mark.parametrize("place", ["/proc/out", "/sys/out", "/proc/self/fd/out"])
def test_file_systems_that_take_no_files_are_refused_to_root_as_well(place: str) -> None:
    checks: tuple[Callable[[], object], ...] = (
        lambda: writable(place, force=False),
        lambda: check_folder(place, "--cache"),
        lambda: check_file(place, "--out"),
    )
    for check in checks:
        with pytest.raises(InputError, match="nothing can be written in"):
            check()


def test_the_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    assert writable(tmp_path / "out" / "chat", force=False) == tmp_path / "out" / "chat"
    check_folder(tmp_path / "cache", "--cache")
    assert list(tmp_path.iterdir()) == []
