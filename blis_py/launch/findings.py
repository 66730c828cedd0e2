"""Outcome of every flag of a server: a setting, no effect, an effect that is not modelled, or unknown."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.yaml_files import parse_yaml
from blis_py.launch.flag_table import FlagMeaning, FlagTable
from blis_py.launch.open_text import is_open, shown, unset

_ON = ("", "true", "1", "on", "yes")
_SWITCHES = (*_ON, "false", "0", "off", "no", "none")


@dataclass
class LaunchFindings:
    """Outcomes of the flags of one server."""

    table: FlagTable
    settings: dict[str, tuple[Any, str]] = field(default_factory=dict)
    """Value and flag by configuration key."""
    parts: dict[str, str] = field(default_factory=dict)
    """Texts by part."""
    labels: dict[str, str] = field(default_factory=dict)
    """The flag that says a part."""
    idle: list[str] = field(default_factory=list)
    unmodelled: list[str] = field(default_factory=list)
    """Flags with what they would change."""
    unknown: list[str] = field(default_factory=list)

    def add(self, section: str, name: str, text: str) -> None:
        """Sort one flag, option or variable with its value; the empty text is that of a switch.

        Raises:
            InputError: its value is unknown, not valid, or one under which nothing of the result would hold.
        """
        if section == "flags" and name.startswith("--") and "." in name:
            section = "options"  # --compilation-config.cudagraph_mode NONE
        label = f"{name} {shown(text)}".strip() if section == "flags" else f"{name}={shown(text)}"
        meaning = self.table.meaning(section, name)
        if meaning is None:
            self._once(self.unknown, label)
        elif meaning.idle:
            self._once(self.idle, name)
        else:
            self._sort(meaning, name, label, text)

    def _sort(self, meaning: FlagMeaning, name: str, label: str, text: str) -> None:
        plain = text.strip().lower()
        if "*" in meaning.same or plain in meaning.same:
            self._once(self.idle, label)
            return
        if is_open(text):
            raise _open(name, text)
        if meaning.values is not None and plain in meaning.values:
            value = meaning.values[plain]
            self._take(meaning, name, value, label) if value is not None else self._once(self.idle, label)
        elif (meaning.key or meaning.part) and meaning.values is None:
            self._apply(meaning, name, text, label)
        elif meaning.refuse:
            raise InputError(
                f"is not simulated: {meaning.would}", key=name, value=text or None, fix="drop it"
            )
        else:
            self._once(self.unmodelled, f"{label}: {meaning.would or 'is not modelled'}")

    def _apply(self, meaning: FlagMeaning, name: str, text: str, label: str) -> None:
        if meaning.read == "json":
            self.nested("" if self.table.title == "TensorRT-LLM" else name, _mapping(name, text))
            return
        if meaning.part:
            if meaning.read != "text":
                text = str(_READERS[meaning.read](name, text))
            self.parts[meaning.part], self.labels[meaning.part] = text, name
            return
        value = _READERS[meaning.read](name, text)
        if value is not None:
            self._take(meaning, name, value, label)
        else:
            self._once(self.idle, label)

    def _take(self, meaning: FlagMeaning, name: str, value: Any, label: str) -> None:
        if meaning.part:
            self.parts[meaning.part], self.labels[meaning.part] = str(value), name
        elif isinstance(value, Mapping):
            self.settings |= {key: (each, name) for key, each in value.items()}
        else:
            self.settings[meaning.key] = value, name

    def nested(self, prefix: str, data: Mapping[Any, Any]) -> None:
        """Sort the leaves of a mapping of options, by dotted name.

        Raises:
            InputError: as `add`.
        """
        for key, value in data.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            if isinstance(value, Mapping) and value and self._has_parts(name):
                self.nested(name, value)
            elif isinstance(value, list):
                self.add("options", name, " ".join(map(_plain, value)) if value else "none")
            else:
                self.add("options", name, _plain(value))

    def _has_parts(self, name: str) -> bool:
        """Whether the entries of a mapping have meanings of their own, or the mapping has none either."""
        inner = any(each.startswith(f"{name}.") for each in self.table.meanings["options"])
        return inner or self.table.meaning("options", name) is None

    @staticmethod
    def _once(found: list[str], label: str) -> None:
        if label not in found:
            found.append(label)


def _plain(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return str(value)
    return (
        {True: "true", False: "false", None: "none"}.get(value, str(value)) if _is_word(value) else str(value)
    )


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _open(name: str, text: str) -> InputError:
    names = unset(text)
    fix = f"give it with --launch-env {names[0]}=…" if names else "write its value in its place"
    return InputError("has a value that only a run of the script has", key=name, value=shown(text), fix=fix)


def _count(name: str, text: str) -> int:
    """A whole number; `16k` and `1.5K` as vLLM has them."""
    match = re.fullmatch(r"(\d+)", text.strip(), re.ASCII)
    if match is not None:
        return int(text)
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgKMG])", text.strip(), re.ASCII)
    if match is None:
        raise InputError("must be a whole number", key=name, value=text)
    kind, power = match[2], "kmg".index(match[2].lower()) + 1
    return int(float(match[1]) * (1000 if kind.islower() else 1024) ** power)


def _share(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("must be a number", key=name, value=text)
    return value


def _switch(name: str, text: str) -> bool:
    plain = text.strip().lower()
    if plain not in _SWITCHES:
        raise InputError("must be true or false", key=name, value=text)
    return plain in _ON


def _only_on(name: str, text: str) -> bool | None:
    """True; None where it is off, which changes nothing."""
    return True if _switch(name, text) else None


def _sizes(name: str, text: str) -> list[int]:
    return [_count(name, each) for each in re.split(r"[\s,\[\]]+", text) if each]


def _mapping(name: str, text: str) -> dict[str, Any]:
    """A mapping in JSON, or in the form of YAML that Python prints."""
    try:
        data = parse_json(text, name)
    except InputError:
        data = parse_yaml(text)
    if not isinstance(data, dict):
        raise InputError("must be a mapping", key=name, value=text, fix='write {"name": value}')
    return data


def _format(name: str, text: str) -> str:
    """A number format of a KV cache."""
    plain = text.strip().lower()
    known = {
        "auto": "auto",
        "bf16": "bfloat16",
        "float16": "bfloat16",
        "fp16": "bfloat16",
        "half": "bfloat16",
    }
    if plain.startswith("fp8"):
        return "fp8"
    return known.get(plain, plain)


_READERS = {
    "text": lambda name, text: text,
    "lower": lambda name, text: text.strip().lower(),
    "count": _count,
    "limit": lambda name, text: -1 if text.strip() == "-1" else _count(name, text),
    "share": _share,
    "switch": _switch,
    "on": _only_on,
    "inverse": lambda name, text: not _switch(name, text),
    "sizes": _sizes,
    "format": _format,
}
