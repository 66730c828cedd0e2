"""Flags, options and environment variables of an engine's server: the tables in `profiles/launch`.

Every entry says one of three things: which setting a value stands for, that it changes nothing, or what a
server would do otherwise that is not modelled.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple

from blis_py.errors import InputError
from blis_py.files.bundled import root
from blis_py.files.yaml_files import load_mapping

ENGINES = ("vllm", "sglang", "trtllm")
_OPPOSITE = {"switch": "inverse", "inverse": "switch"}
_OFF = ("false", "none")
"""Texts of options under which nothing is on."""
SECTIONS = ("flags", "options", "environment")


class FlagMeaning(NamedTuple):
    """Meaning of one flag, option or environment variable.

    Attributes:
        key: the setting, by configuration key; empty if it has none.
        part: what it says of the server in other words than a setting: `model`, `tensor`, `data`, …
        read: how the text becomes a value: `text`, `count`, `limit` (-1 = none), `share`, `switch`,
            `sizes`, `inverse`, `json`.
        values: values of the setting by text; null = as without the flag.
        same: texts that change nothing; `*` = all of them.
        would: what a server would do otherwise, for every other text; empty if there is none.
        refuse: whether such a text is refused, because nothing of the result would hold.
        switch: whether it takes no value.
        many: whether it takes several.
    """

    key: str = ""
    part: str = ""
    read: str = "text"
    values: dict[str, Any] | None = None
    same: tuple[str, ...] = ()
    would: str = ""
    refuse: bool = False
    switch: bool = False
    many: bool = False
    idle: bool = False


class FlagTable(NamedTuple):
    """The tables of an engine; `names` leads from every spelling to the first one."""

    title: str
    names: dict[str, str]
    meanings: dict[str, dict[str, FlagMeaning]]
    patterns: dict[str, tuple[tuple[str, FlagMeaning], ...]]
    """Patterns of names with the meaning of all that have none of their own, by section."""

    def meaning(self, section: str, name: str) -> FlagMeaning | None:
        """The meaning of a name in a section; None if it is unknown."""
        found = self.meanings[section].get(self.names.get(name, name))
        if found is None:
            found = next((of for each, of in self.patterns[section] if fnmatchcase(name, each)), None)
        if found is None and section == "flags" and name.startswith("--no-"):
            positive = self.meaning(section, f"--{name.removeprefix('--no-')}")
            return _negated(positive) if positive is not None and positive.switch else None
        return found


def _negated(switch: FlagMeaning) -> FlagMeaning:
    """The meaning of `--no-x` by that of the switch `--x`."""
    if switch.read in _OPPOSITE and switch.part:
        return FlagMeaning(part=switch.part, values={"": "False"}, switch=True)
    if switch.read in _OPPOSITE:
        return FlagMeaning(key=switch.key, read=_OPPOSITE[switch.read], switch=True)
    if switch.would and "" in switch.same:  # it is on by default
        return FlagMeaning(would=switch.would, switch=True)
    return FlagMeaning(idle=True, switch=True)


@cache
def flag_table(engine: str) -> FlagTable:
    """The tables of `vllm`, `sglang` or `trtllm`.

    Raises:
        InputError: an entry has an unknown key.
    """
    path = root("profiles") / "launch" / f"{engine}.yaml"
    data = load_mapping(path)
    names: dict[str, str] = {}
    meanings: dict[str, dict[str, FlagMeaning]] = {}
    patterns: dict[str, tuple[tuple[str, FlagMeaning], ...]] = {}
    for section in SECTIONS:
        content = data.get(section) or {}
        meanings[section] = {}
        for name, entry in (content.get("meaning") or {}).items():
            spellings = entry.pop("also", [])
            unknown = entry.keys() - set(FlagMeaning._fields)
            if unknown:
                raise InputError("unknown key", file=path, key=f"{section}.{name}", value=sorted(unknown)[0])
            same = tuple(str(each).lower() for each in entry.pop("same", ()))
            meanings[section][name] = FlagMeaning(same=same, **entry)
            names |= dict.fromkeys(spellings, name)
        for name in content.get("idle") or ():
            meanings[section][name] = FlagMeaning(idle=True)
        for name in content.get("idle_switches") or ():
            meanings[section][name] = FlagMeaning(idle=True, switch=True)
        off = _OFF if section == "options" else ()
        for switch, key in ((False, "unmodelled"), (True, "unmodelled_switches")):
            for would, of in (content.get(key) or {}).items():
                meanings[section] |= {name: FlagMeaning(would=would, same=off, switch=switch) for name in of}
        idle = dict.fromkeys(content.get("idle_patterns") or (), FlagMeaning(idle=True))
        grouped = {name: of for name, of in meanings[section].items() if "*" in name}
        patterns[section] = tuple((grouped | idle).items())
    return FlagTable(data["title"], names, meanings, patterns)
