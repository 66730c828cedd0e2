"""NOTICE.md names the licence of every bundled file."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| `(?P<files>[^`]+)` \| (?P<licence>[^|]+) \| (?P<source>[^|]+) \|$", re.MULTILINE)
ROWS = [row.groups() for row in ROW.finditer((ROOT / "NOTICE.md").read_text("utf-8"))]
LICENCE = re.compile(r"\b(Apache-2\.0|MIT|CC-BY-[0-9A-Z.-]*[0-9A-Z]|BSD-[0-9]-Clause|GPL[-v.0-9]*)")
"""SPDX names of licences as sources are cited with them."""


def bundled() -> list[str]:
    """Files of others than the packages in a wheel."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    places = [ROOT / source for source in wheel["force-include"]]
    files = [path for place in places for path in (sorted(place.rglob("*")) if place.is_dir() else [place])]
    return [path.relative_to(ROOT).as_posix() for path in files if path.is_file()]


def of(file: str) -> list[tuple[str | None, ...]]:
    return [row for row in ROWS if fnmatch(file, str(row[0]))]


def test_every_bundled_file_has_one_line() -> None:
    assert [file for file in bundled() if len(of(file)) != 1] == []
    assert [row[0] for row in ROWS if not any(fnmatch(file, str(row[0])) for file in bundled())] == []


@pytest.mark.parametrize("place", ["profiles", "workloads"])
def test_a_licence_that_a_file_names_is_in_its_line(place: str) -> None:
    files = [file for file in bundled() if file.startswith(place) and not file.endswith(".gz")]
    named = {file: set(LICENCE.findall((ROOT / file).read_text("utf-8"))) for file in files}
    assert any(named.values())
    assert {file: found for file, found in named.items() if found - set(str(of(file)[0][1]).split())} == {}


def test_the_package_states_the_licences_of_all_lines() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    stated = set(project["license"].split(" AND "))
    assert stated == {name for row in ROWS for name in str(row[1]).split(" AND ")}
    assert "NOTICE.md" in project["license-files"]
