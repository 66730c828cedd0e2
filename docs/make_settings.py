"""Writes the page of settings from their registrations.

python docs/make_settings.py
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

from blis_py.cli.flags.options import SETTINGS
from blis_py.config.described import bounds_of, field_of, meanings
from blis_py.config.engine import usual_settings
from blis_py.config.models import SECTIONS, RunConfig

PAGE = Path(__file__).resolve().parent / "settings.md"
HEAD = """\
# Settings, key by key

Made by `python docs/make_settings.py` from
the [registrations](architecture.md#a-setting-is-one-registration).

A key is that of the YAML (`--config FILE`, `--set KEY=VALUE`), and the flag is that of `blis run` and of the
other commands that simulate. The keyword of `blis.run` is the flag with underscores, without the dashes in
front. Defaults are those of the engine preset `vllm`, marked where it is the preset that says so.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_section("Run", RunConfig, "")]
    for name, section in SECTIONS.items():
        parts += _section(name.capitalize(), section, f"{name}.")
    return "\n".join(parts)


def _section(title: str, section: type, prefix: str) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| key | flag | default | bounds | meaning |\n|---|---|---|---|---|"
    flags = {flag.key: flag.name for group in SETTINGS.values() for flag in group if not flag.off}
    for name, meaning in meanings(section).items():
        key = f"{prefix}{name}"
        if key not in SECTIONS and field_of(key).compare:
            cells = [
                f"`{key}`",
                _code(flags.get(key)),
                _default(key),
                bounds_of(key),
                meaning.replace("None", "null"),
            ]
            yield f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"
    yield ""


def _default(key: str) -> str:
    preset = usual_settings()
    default = preset.get(key, field_of(key).default)
    if default is MISSING or default is None or default in ((), ""):
        return ""
    return f"`{_yaml(default)}`{' (preset)' if key in preset else ''}"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _code(text: str | None) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
