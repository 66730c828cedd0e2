"""Files that a run depends on."""

from __future__ import annotations

from typing import Any

import pytest

from blis_py.planning import contents


@pytest.mark.parametrize(
    ("text", "digested"), [("", False), ("a.csv", True), ("b.csv", False), ("a\0b", False)]
)
def test_files_that_a_spec_names_are_part_of_it(tmp_path: Any, text: str, digested: bool) -> None:
    (tmp_path / "a.csv").write_text("x")
    spec = tmp_path / "spec.yaml"
    spec.write_text("x: {y: [" + repr(text).replace("'", '"') + ", 3]}\n" if "\0" not in text else "x: y\n")
    assert contents._with_references(spec) == [spec, *([tmp_path / "a.csv"] if digested else [])]


def test_a_spec_does_not_name_itself_and_a_checkpoint_is_its_configuration(tmp_path: Any) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("me: spec.yaml\n")
    assert contents._with_references(spec) == [spec]
    for name in ("config.json", "weights.bin"):
        (tmp_path / name).write_text("")
    assert contents._configs(tmp_path) == [tmp_path / "config.json"]
    assert contents._configs(spec) == [spec]
    assert set(contents._itself(tmp_path)) == {spec, tmp_path / "config.json", tmp_path / "weights.bin"}
