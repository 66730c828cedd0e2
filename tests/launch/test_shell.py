"""Shell text as far as it decides what a server is started with."""

from __future__ import annotations

import pytest

from blis_py.errors import InputError
from blis_py.launch.open_text import is_open, shown
from blis_py.launch.shell_run import run_script


def words(script: str, **given: str) -> list[list[str]]:
    """The words of the commands that a script executes."""
    return [[shown(word) for word in command.words] for command in run_script(script, given).commands]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a --x 1 \\\n  --y=2", ["a", "--x", "1", "--y=2"]),
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("X='1 2'; a $X \"$X\"", ["a", "1", "2", "1 2"]),
        ("A=(--x 1); A+=(--y 'b c'); a \"${A[@]}\"", ["a", "--x", "1", "--y", "b c"]),
        ('A=(); a "${A[@]}" b', ["a", "b"]),
        ("A=\"--x 1\"; A+=' --y'; a $A", ["a", "--x", "1", "--y"]),
        ("a ${X:-7} ${X:=8} ${X} ${X:+9} ${Y:+z}", ["a", "7", "8", "8", "9"]),
        ("N=3; a $((N * 2 + 1)) $(( N > 2 ? 5 : 6 )) $((N%2))", ["a", "7", "5", "1"]),
        ("P=/m/Org/Name.tar; a ${P##*/} ${P%.tar}", ["a", "Name.tar", "/m/Org/Name"]),
        ("P=/m/Org; a ${P/Org/X} ${P,,}", ["a", "/m/X", "/m/org"]),
        ("a # b\n", ["a"]),
        ("a x#y '#z'", ["a", "x#y", "#z"]),
        ("a 1 > log 2>&1 &", ["a", "1"]),
        ("a --n 4 2> log", ["a", "--n", "4"]),
        ("a $(echo 5) $X", ["a", "5", "$X"]),
        ("X=a; Y=X; a ${!Y}", ["a", "a"]),
        ('set -- x y; a "$@" $# $1', ["a", "x", "y", "2", "x"]),
        ("f() { a \"$1\"; }; f 'b c'", ["a", "b c"]),
        ("bash -lc \"a --x 'b c'\"", ["a", "--x", "b c"]),
        ('eval "a $((1 + 1))"', ["a", "2"]),
        ('for x in 1 2; do X="$X$x"; done; a $X', ["a", "$X12"]),
        ("case $TP in 1|2) a small;; *) a large;; esac", ["a", "small"]),
        ("if [ $TP -eq 2 ] && [[ ! -n $NONE ]]; then a yes; else a no; fi", ["a", "yes"]),
        ('if [[ $TP == 4 || "$TP" -gt 1 ]]; then a yes; fi', ["a", "yes"]),
        ("if (( TP > 1 )); then a yes; fi", ["a", "yes"]),
        ('[ "$TP" = 2 ] && X=1; [ $TP = 3 ] && X=3; a $X', ["a", "1"]),
        ("false || X=1; a $X", ["a", "1"]),
        ("X=1 a $X", ["a", "$X"]),
    ],
)
def test_a_command_has_the_words_that_a_shell_gives_it(script: str, expected: list[str]) -> None:
    assert words(script, TP="2")[-1] == expected


def test_a_variable_that_is_not_set_stays_open_and_leaves_a_condition_undecided() -> None:
    run = run_script('if [ "$DP" = true ]; then A=--dp; fi\na $A', {})
    assert shown(run.commands[-1].words[1]) == "$A"
    assert run.notes == ["line 1: if [ $DP = true ]: cannot be decided; none of its branches is read"]
    assert not run_script('if [ "$DP" = true ]; then echo hello; exit 1; fi', {}).notes


def test_a_script_that_exits_starts_nothing_afterwards() -> None:
    assert words("if [ $TP = 3 ]; then exit 1; fi\na", TP="3") == []
    assert words("f() { return; b; }\nf\na") == [["a"]]


def test_files_that_a_script_writes_are_read_with_their_variables() -> None:
    run = run_script(
        "N=4\ncat > x.yml <<EOF\na: $N\nEOF\ncat <<'EOF' >> x.yml\nb: $N\nEOF\necho 'c: 1' | tee y.yml", {}
    )
    assert run.file("/other/x.yml") == "a: 4\nb: $N\n"
    assert run_script("tee z.yml <<-EOF\n\ta: 1\n\tEOF", {}).file("z.yml") == "a: 1\n"


def test_variables_that_are_exported_or_stand_before_a_command_are_its_environment() -> None:
    commands = run_script("X=1\nexport Y=2 Z\nZ=3 W=4 a", {"G": "5"}).commands
    assert commands[0].environment == {"Y": "2", "G": "5", "Z": "3", "W": "4"}


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("a 'b", "line 1: ' is not closed"),
        ('\na "b', 'line 2: " is not closed'),
        ("if true; then a", "fi is missing"),
        ("a ${X", "{ is not closed"),
        ("A=(1 2", "a list in brackets is not closed"),
        ("done", "done has no beginning"),
        ("vllm serve x \\ \n --tp 4", "line 2: a command cannot begin with a dash"),
        ("vllm serve x\n  --tp 4", "end the line before with a backslash"),
        ("case x in a) b", "esac is missing"),
        ("a >", "> leads nowhere"),
    ],
)
def test_text_that_is_no_script_is_refused_with_its_line(script: str, complaint: str) -> None:
    with pytest.raises(InputError) as error:
        run_script(script, {})
    assert complaint in str(error.value)


def test_a_script_that_never_ends_is_refused() -> None:
    nested = "".join(f"for x{n} in 1 2 3 4 5 6 7 8 9; do " for n in range(6)) + "a; " + "done; " * 6
    with pytest.raises(InputError, match="more than 20,000 commands"):
        run_script(nested, {})
    assert words("f() { f; }; f; a") == [["a"]]
    with pytest.raises(InputError, match="nested more than 40 deep"):
        run_script("{ " * 60 + "a; " + "}; " * 60, {})


def test_arithmetic_takes_parameters_with_defaults() -> None:
    for text, value in {
        "$(( ${I:-3} * D ))": "24",
        "$((${#D} + ${D}))": "9",
        "$(( ${K} * 2 ))": None,
    }.items():
        (command,) = run_script(f"A={text}\necho $A z", {"D": "8"}).commands
        if value is None:
            assert is_open(command.words[1])
            assert command.words[2:] == ("z",)
        else:
            assert command.words == ("echo", value, "z")
