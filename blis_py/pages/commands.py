"""Commands that reproduce what a page shows."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from blis_py.files.yaml_files import dump_yaml
from blis_py.pages.parts import Code


def configuration(settings: Mapping[str, Any]) -> str:
    """The content of `config.yaml`."""
    return dump_yaml(dict(settings)).rstrip()


def short_configuration(settings: Mapping[str, Any]) -> str:
    """The settings that were given, as YAML that loads as the same configuration; all, if unknown."""
    given = settings.get("given")
    if given is None:
        return configuration(settings)
    values: dict[str, Any] = {}
    for key in given:
        value: Any = settings
        for name in key.split("."):
            value = value[name]
        *sections, last = key.split(".")
        place = values
        for name in sections:
            place = place.setdefault(name, {})
        place[last] = value
    return dump_yaml(values).rstrip()


def run_again(settings: Mapping[str, Any]) -> str:
    """A shell command with the configuration in it."""
    text = short_configuration(settings)
    return f"cat > config.yaml <<'YAML'\n{text}\nYAML\nblis run --config config.yaml --out again"


def again(source: str | None) -> Iterator[Code]:
    """Commands on the saved result."""
    if source is None:
        return
    folder = shlex.quote(source)
    lines = (
        f"blis report {folder} -o report.html",
        f"blis explain {folder} --metric ttft.p99",
        f"blis plot {folder}",
        f"blis ui {folder}",
    )
    yield Code("This report, and where to go on", "\n".join(lines))
