"""Completion by shells: verbs, their verbs, and flags, from the tables they stand in."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from blis_py.cli.flags.flag import spelled
from blis_py.cli.program import BLIS, Program, command_of
from blis_py.errors import InputError
from blis_py.outputs.staging import write_text

_BASH = """\
_blis_completion() {
    local IFS=$'\\n'
    local variables=( COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD _BLIS_COMPLETE=complete_bash )
    COMPREPLY=( $( env "${variables[@]}" $1 ) )
    return 0
}
complete -o default -F _blis_completion blis
"""
_SCRIPTS = {
    "bash": _BASH,
    "zsh": f"autoload -Uz bashcompinit && bashcompinit\n{_BASH}",
    "fish": """\
function _blis_completion
    set -l words (commandline -opc) (commandline -ct)
    env COMP_WORDS="$words" COMP_CWORD=(math (count $words) - 1) _BLIS_COMPLETE=complete_fish blis
end
complete -c blis -f -a '(_blis_completion)'
""",
}
"""Puts the words of a command line into the environment and has `blis` answer with one word a line."""
_READ = {"bash": ".bashrc", "zsh": ".zshrc", "fish": ".config/fish/completions/blis.fish"}
"""Below the home folder, what each shell reads."""


def complete() -> int:
    """Answers a shell."""
    words = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", "")).split()
    place = int(os.environ.get("COMP_CWORD", len(words) - 1))
    begun = words[place] if place < len(words) else ""
    print("\n".join(word for word in _possible(words[1:place], begun) if word.startswith(begun)))
    return 0


def _possible(before: Sequence[str], begun: str) -> Iterable[str]:
    """Candidates for the word behind these."""
    program = BLIS
    for word in before:
        if word not in program.verbs:
            break
        try:
            command = command_of(word, program.verbs[word])
        except ImportError:  # an engine without torch
            return ()
        if not isinstance(command, Program):
            shown = [name for name, flag in spelled(command.groups) if name == flag.name and not flag.hidden]
            return [name for name in (*shown, "--help") if begun.startswith("-") and name.startswith("-")]
        program = command
    flags = (flag.name for flag in program.flags) if begun.startswith("-") else ()
    return (*program.verbs, *flags)


def set_up(arguments: Sequence[str]) -> int:
    """`--show-completion` and `--install-completion`, each with the name of a shell or without.

    Raises:
        InputError: the shell is unknown.
    """
    name, *rest = arguments
    shell = rest[0] if rest else Path(os.environ.get("SHELL", "bash")).name
    if shell not in _SCRIPTS or name not in ("--show-completion", "--install-completion"):
        raise InputError("unknown shell", key=name, value=shell, fix=f"use {', '.join(_SCRIPTS)}")
    if name == "--show-completion":
        print(_SCRIPTS[shell], end="")
        return 0
    file = Path.home() / _READ[shell]
    file.parent.mkdir(parents=True, exist_ok=True)
    known = file.read_text(encoding="utf-8") if file.exists() else ""
    if _SCRIPTS[shell] not in known:
        write_text(file, known + _SCRIPTS[shell])
    print(f"{file}: completes blis in the next {shell}")
    return 0
