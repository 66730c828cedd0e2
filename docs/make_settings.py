"""Writes the page of settings from their registrations.

python docs/make_settings.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path

from blis_py.cli.flags.options import SETTINGS
from blis_py.config.described import docstrings, field_of, helps
from blis_py.config.engine import usual_settings
from blis_py.config.models import SECTIONS, RunConfig
from blis_py.core.checks import choices_of

PAGE = Path(__file__).resolve().parent / "settings.md"
HEAD = """\
# Settings, key by key

Made by `python docs/make_settings.py` from the
[registrations](architecture.md#a-setting-is-one-registration).

Each line: the key of the YAML (`--config FILE`, `--set KEY=VALUE`), its flag unless that is the key's
last part with dashes, the default under `--engine vllm`, the meaning, and the choices. The keyword of
`blis.run` is the flag with underscores; `help(blis.run)` has the bounds and longer descriptions.
"""


def page() -> str:
    """The whole page."""
    parts = [HEAD, *_section("Run", RunConfig, "")]
    for name, section in SECTIONS.items():
        parts += _section(name.capitalize(), section, f"{name}.")
    return "\n".join(parts)


def _section(title: str, section: type, prefix: str) -> Iterator[str]:
    yield f"## {title}\n"
    flags = {flag.key: flag.name for group in SETTINGS.values() for flag in group if not flag.off}
    texts, brief = docstrings(section), helps(section)
    for name in brief | texts:
        meaning = brief.get(name) or texts.get(name, "")
        key = f"{prefix}{name}"
        if key not in SECTIONS and field_of(key).compare:
            parts = [f"`{key}`", _flag(flags.get(key), name), _default(key)]
            text = _short(meaning.replace("None", "null"))
            yield f"- {' '.join(part for part in parts if part)}: {text}{_choices(key, text)}."
    yield ""


def _short(meaning: str) -> str:
    """The first sentence, without what holds otherwise; `help(blis.run)` has the rest."""
    first = re.split(r"(?<=[\w`)])\. (?=[A-Z`])", meaning)[0]
    return first.partition("; otherwise")[0].rstrip(".")


def _flag(flag: str | None, name: str) -> str:
    """Nothing where it is the name with dashes."""
    if flag is None:
        return "(key only)"
    return "" if flag == f"--{name.replace('_', '-')}" else f"`{flag}`"


def _choices(key: str, text: str) -> str:
    """Those that the text does not name."""
    choices = sorted(choices_of(field_of(key).metadata) or ())
    return "" if all(choice in text for choice in choices) else f"; one of {', '.join(choices)}"


def _default(key: str) -> str:
    default = usual_settings().get(key, field_of(key).default)
    if default is MISSING or default is None or default in ((), ""):
        return ""
    return f"(`{_yaml(default)}`)"


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
