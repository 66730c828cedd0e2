"""A command line is read by the tables of flags: every spelling, in every form, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blis_py.cli.flags.flag import Flag, Group, spelled
from blis_py.cli.flags.help import help_text
from blis_py.cli.flags.parser import parse, unknown_flag
from blis_py.cli.program import BLIS, Command, Program, command_of
from blis_py.cli.verbs.run import GROUPS
from blis_py.errors import InputError

WORDS = {int: "7", float: "2.5", str: "some text", list[str]: "a=b"}
VALUES = {bool: True, int: 7, float: 2.5, str: "some text", list[str]: ["a=b"]}


def commands(program: Program = BLIS) -> Iterator[tuple[str, Command]]:
    for verb, entry in program.verbs.items():
        if verb != "engine":
            found = command_of(verb, entry)
            if isinstance(found, Program):
                yield from commands(found)
            else:
                yield f"{program.name} {verb}", found


COMMANDS = dict(commands())


def flags_of(groups: tuple[Group, ...]) -> dict[str, Flag]:
    return {name: flag for name, flag in spelled(groups) if name.startswith("-")}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_spelling_is_read_in_the_order_of_the_groups(name: str) -> None:
    groups = COMMANDS[name].groups
    flags = flags_of(groups)
    expected = {spelling: VALUES[flag.kind] for spelling, flag in flags.items()}
    for join in (lambda name, word: [name, word], lambda name, word: [f"{name}={word}"]):
        pieces = [
            [spelling] if flag.kind is bool else join(spelling, WORDS[flag.kind])
            for spelling, flag in flags.items()
        ]
        for ordered in (pieces, pieces[::-1]):
            found = parse([word for piece in ordered for word in piece], groups)
            assert found is not None
            assert list(found.items()) == list(expected.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_flag_that_is_not_hidden(name: str) -> None:
    groups = COMMANDS[name].groups
    listed = {line.split()[0] for line in help_text(name, "", groups).splitlines() if line.startswith("  --")}
    assert listed == {flag.name for flag in flags_of(groups).values() if not flag.hidden}


PLACES: tuple[Group, ...] = (
    ("Words", (Flag("source", str, ""), Flag("others", list[str], ""))),
    ("Flags", (Flag("--tp", int, ""), Flag("--drain", bool, ""), Flag("--slo", list[str], "", many=True))),
)


@pytest.mark.parametrize(
    "line", ["a b c --tp 2", "--tp 2 a b c", "a --tp 2 b c", "--tp=2 -- a b c", "a b --tp 3 --tp 2 c"]
)
def test_words_stand_anywhere_among_the_flags(line: str) -> None:
    assert parse(line.split(), PLACES) == {"source": "a", "others": ["b", "c"], "--tp": 2}


def test_behind_two_dashes_words_are_no_flags() -> None:
    assert parse(["--", "--tp", "-x"], PLACES) == {"source": "--tp", "others": ["-x"]}


def test_a_value_may_begin_with_a_dash() -> None:
    groups: tuple[Group, ...] = (("Flags", (Flag("--stop", str, ""), Flag("--shift", float, ""))),)
    assert parse(["--stop", "--", "--shift", "-1e3"], groups) == {"--stop": "--", "--shift": -1000.0}
    assert parse(["--stop=--shift"], groups) == {"--stop": "--shift"}


def test_a_flag_of_several_values_takes_them_all_and_can_be_repeated() -> None:
    found = parse(["--slo", "a", "b", "--drain", "--slo", "c"], PLACES)
    assert found == {"--drain": True, "--slo": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("--nope", "no such option: --nope"),
        ("--nope=1", "no such option: --nope"),
        ("--num-inst 3", "no such option: --num-inst; did you mean --num-instances?"),
        ("-tp2", "no such option: -tp2; did you mean -tp?"),
        ("--tp", "option '--tp' requires an argument"),
        ("--stop --tp 1", "no such option: --stop"),
        (
            "--tp --drain",
            "option '--tp' requires an argument; where --drain is meant as its value, write --tp=--drain",
        ),
        ("--tp x", "--tp: must be a whole number (found 'x')"),
        ("--rate=fast", "--rate: must be a number (found 'fast')"),
        ("--drain=1", "option '--drain' does not take a value"),
        ("run", "does not belong here (found 'run')"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(line: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(line.split(), GROUPS)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize("line", ["-h", "--help", "--tp 2 -h", "x -h"])
def test_help_is_help_wherever_it_stands(line: str) -> None:
    assert parse(line.split(), GROUPS) is None


SPELLINGS = st.sampled_from(list(flags_of(GROUPS)))
TEXTS = st.sampled_from(["7", "-1", "2.5", "1e3", "x", "", "a=b", "-", "--", "-h", "--tp", "--drain", "%d"])
ODD = st.sampled_from(["x", "", "-", "--", "-h", "--help", "--nope", "--nope=1", "-x", "-tp2", "--ra", "%s"])
PIECES = st.one_of(
    st.tuples(SPELLINGS, TEXTS),
    st.builds("{}={}".format, SPELLINGS, TEXTS).map(lambda word: (word,)),
    st.tuples(SPELLINGS),
    st.tuples(ODD),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(st.lists(PIECES, max_size=5))
def test_any_words_are_flags_or_help_or_one_error(pieces: list[tuple[str, ...]]) -> None:
    words = [word for piece in pieces for word in piece]
    try:
        found = parse(words, GROUPS)
    except InputError:
        return
    if found is None:
        assert {"-h", "--help"} & set(words)
    else:
        assert found.keys() <= {word.partition("=")[0] for word in words}


def test_the_count_of_requests_of_another_command_is_recognised() -> None:
    known = ["--num-gpu-blocks", "--num-prompts"]
    assert str(unknown_flag("--num-requests", known)).endswith("did you mean --num-prompts?")
    assert "did you mean" not in str(unknown_flag("--num-requests", known[:1]))
