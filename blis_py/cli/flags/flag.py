"""A flag of a command: what it is called, what it sets, what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

Flags = dict[str, Any]
"""Flags as given, by name (`--tp`); those not given are absent."""
SERVERS = "vLLM"
"""Heading of the flags of servers and their benchmarks: commands with it take all flags of servers."""
OF_SERVERS = "of servers"
"""Entry of given flags with those that only servers have: pairs of name and text."""


class Flag(NamedTuple):
    """One flag. `key` is the configuration key it sets; the empty string where it sets none."""

    name: str
    """Without dashes: no flag, but a word that stands by itself, in the order of the flags."""
    kind: Any
    key: str
    help: str = ""
    aliases: tuple[str, ...] = ()
    """Other spellings, hidden from the help."""
    metavar: str | None = None
    hidden: bool = False
    many: bool = False
    """Whether it takes several values at once: `--goodput ttft:500 tpot:50`."""
    off: bool = False
    """Turns the setting off."""
    null: float | None = None
    """The value that means null."""
    default: Any = None
    """Value without it, where no engine preset says otherwise."""
    read: Callable[[str, Any], Any] | None = None
    """The value of the setting from flag and text, where they differ."""
    scalar: bool = False
    """Whether its setting is one number or one word, so that a list of values is none."""
    axis: bool = False
    """Whether a list or a range of values is an axis of a study: `--tp 2,4`."""

    def value(self, name: str, given: Any) -> Any:
        """The configuration value of a text on the command line.

        Args:
            name: the spelling that was used.
        """
        if self.off:
            return False
        if self.many:
            return [word for text in given for word in text.replace(",", " ").split()]
        if self.null is not None and given == self.null:
            return None
        return given if self.read is None else self.read(name, given)

    def spans(self, text: str) -> bool:
        """Whether a text is several values of a setting that has one: an axis of a study."""
        if not self.axis:
            return False
        return "," in text or text.startswith("auto:") or (self.kind in (int, float) and ":" in text)

    @property
    def spellings(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)


Group = tuple[str, tuple[Flag, ...]]
"""A heading of the help, and the flags below it."""


def spelled(groups: Sequence[Group]) -> Iterator[tuple[str, Flag]]:
    """Every spelling with its flag, in the order of the groups."""
    return ((spelling, flag) for _, flags in groups for flag in flags for spelling in flag.spellings)
