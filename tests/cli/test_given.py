"""A plain command line is read as typer reads it, without typer; whatever is not plain is left to typer."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

import pytest
from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from blis_py.cli.apps import launch
from blis_py.cli.command import add, application
from blis_py.cli.flag import Flag, Flags, Group
from blis_py.cli.given import given
from blis_py.cli.run import GROUPS
from blis_py.cli.verbs import VERBS
from blis_py.errors import InputError

VALUES = {int: "7", float: "2.5", str: "some text", list[str]: "a=b"}


def flags_of(groups: Sequence[Group]) -> list[tuple[str, Flag]]:
    """Every spelling, and the flag it stands for."""
    flags = [flag for _, group in groups for flag in group if flag.name.startswith("-")]
    return [(spelling, flag) for flag in flags for spelling in (flag.name, *flag.aliases)]


def by_typer(words: list[str], groups: tuple[Group, ...]) -> Flags | None:
    """What typer hands to a verb; `None` where it complains, or helps."""
    seen: list[Flags] = []

    def verb(flags: Flags) -> None:
        seen.append(flags)

    app = application("")
    add(app, verb, groups, words)
    try:
        launch(app, words, "blis verb")
    except InputError:
        return None
    return seen[0] if seen else None


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_read_as_typer_reads_it(verb: str) -> None:
    groups = import_module(f"blis_py.cli.{verb}").GROUPS
    spelled = [(spelling, VALUES.get(flag.kind)) for spelling, flag in flags_of(groups)]
    apart = [[name] if value is None else [name, value] for name, value in spelled]
    joined = [[name] if value is None else [f"{name}={value}"] for name, value in spelled]
    for pieces in (apart, joined, apart[::-1]):
        words = [word for piece in pieces for word in piece]
        read, found = given(words, groups), by_typer(words, groups)
        assert read is not None
        assert found is not None
        assert list(read.items()) == list(found.items())
        assert len(read) == len(spelled)


SPELLINGS = st.sampled_from([spelling for spelling, _ in flags_of(GROUPS)])
TEXTS = st.sampled_from(["7", "-1", "2.5", "1e3", "x", "", "a=b", "--", "-h", "--tp", "--drain"])
ODD = st.sampled_from(["x", "", "-", "--", "-h", "--help", "--nope", "--nope=1", "-x", "-tp2", "--ra"])
PIECES = st.one_of(
    st.tuples(SPELLINGS, TEXTS),
    st.builds("{}={}".format, SPELLINGS, TEXTS).map(lambda word: (word,)),
    st.tuples(SPELLINGS),
    st.tuples(ODD),
)


@settings(deadline=None, max_examples=200)
@examples(st.lists(PIECES, max_size=5))
def test_what_is_read_plainly_is_what_typer_reads(pieces: list[tuple[str, ...]]) -> None:
    words = [word for piece in pieces for word in piece]
    read = given(words, GROUPS)
    if read is not None:
        found = by_typer(words, GROUPS)
        assert found is not None
        assert list(read.items()) == list(found.items())


@pytest.mark.parametrize(
    "words",
    [
        "--help",
        "--tp 2 -h",
        "run",
        "--nope 1",
        "--tp",
        "--tp x",
        "--rate fast",
        "--drain=1",
        "-- --tp 2",
        "-tp2",
    ],
)
def test_what_is_not_plain_is_left_to_typer(words: str) -> None:
    assert given(words.split(), GROUPS) is None
