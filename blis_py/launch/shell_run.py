"""Execution of a shell script as far as its text decides: variables, conditions, files, and its commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import NamedTuple

from blis_py.errors import InputError
from blis_py.launch.open_text import is_open, shown
from blis_py.launch.shell_conditions import expanded, of_tokens, of_words, opposite
from blis_py.launch.shell_expand import ShellVariables
from blis_py.launch.shell_lexer import ShellWord
from blis_py.launch.shell_syntax import (
    Node,
    ShellCase,
    ShellChain,
    ShellFunction,
    ShellGroup,
    ShellIf,
    ShellLoop,
    ShellSimple,
    ShellTest,
    parse_script,
)

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_DECLARES = ("export", "declare", "local", "readonly", "typeset")
_WRITES = (">", ">>", ">|")
_SHELLS = ("bash", "sh", "zsh", "dash")
_CARRIERS = ("ssh", "tmux", "screen", "su", "runuser", "script", "sbatch", "pdsh", "env")
"""Commands that hand one of their words to a shell, or split it (`env -S`)."""
_CARRIED = re.compile(r"^(--wrap=|--split-string=|-S)")
_STARTS = re.compile(r"\b(vllm|sglang|trtllm-serve|dynamo\.)")
MAX_COMMANDS = 20_000
"""Most commands of a script, loops unrolled."""
_MAX_CALLS = 20


class ShellCommand(NamedTuple):
    """A command of a script: its words, its environment, and the words that start the shell it is in."""

    line: int
    words: tuple[str, ...]
    environment: dict[str, str]
    before: tuple[str, ...] = ()


@dataclass
class ShellRun:
    """A script that is executed; `commands` are those that are neither of the shell nor functions."""

    variables: ShellVariables
    commands: list[ShellCommand] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Texts that the script writes, by path."""
    notes: list[str] = field(default_factory=list)
    _functions: dict[str, list[Node]] = field(default_factory=dict)
    _before: tuple[str, ...] = ()
    """Words before the shell whose script is executed."""
    _piped: str | None = None
    """Text that a command hands to the next one of its pipeline."""
    _count: int = 0
    _calls: int = 0
    _stopped: str = ""
    """`exit` or `return` once one of them was executed."""

    def execute(self, nodes: list[Node]) -> bool | None:
        """Execute commands; the outcome of the last."""
        outcome: bool | None = True
        for node in nodes:
            if self._stopped:
                break
            outcome = self._node(node)
        return outcome

    def _node(self, node: Node) -> bool | None:
        match node:
            case ShellSimple():
                return self._simple(node)
            case ShellTest():
                return of_tokens(node.tokens, self.variables)
            case ShellChain():
                return self._chain(node)
            case ShellIf():
                return self._if(node)
            case ShellCase():
                return self._case(node)
            case ShellLoop():
                return self._loop(node)
            case ShellGroup():
                return self.execute(node.body)
            case ShellFunction():
                self._functions[node.name] = node.body
        return True

    def _chain(self, node: ShellChain) -> bool | None:
        outcome: bool | None = True
        for link, negated, pipeline in node.links:
            if (link == "&&" and outcome is False) or (link == "||" and outcome is True):
                continue
            if link == "||" and outcome is None and not any(map(_is_server, pipeline)):
                continue  # what is done on failure
            value: bool | None = None
            self._piped = None
            for part in pipeline:
                value = self._node(part)
            if len(pipeline) > 1:
                value = None
            outcome = opposite(value) if negated else value
        return outcome

    def _if(self, node: ShellIf) -> bool | None:
        for condition, body in node.branches:
            decided = True if condition is None else self.execute(condition)
            if decided:
                return self.execute(body)
            if decided is None:
                left = [each for _, branch in node.branches for each in branch]
                if any(map(_has_effect, left)):
                    self._undecided(node.line, condition or [])
                return None
        return True

    def _undecided(self, line: int, condition: list[Node]) -> None:
        text = " ".join(_texts(condition, self.variables)) or "…"
        self.notes.append(f"line {line}: if {text}: cannot be decided; none of its branches is read")

    def _case(self, node: ShellCase) -> bool | None:
        subject = self.variables.joined(node.subject.pieces)
        for patterns, body in node.branches:
            for pattern in patterns:
                text = self.variables.joined(pattern.pieces)
                if text != "*" and (is_open(subject) or is_open(text)):
                    if any(_has_effect(each) for _, branch in node.branches for each in branch):
                        what = f"line {node.line}: case {shown(subject)}: cannot be decided"
                        self.notes.append(f"{what}; none of its branches is read")
                    return None
                if fnmatchcase(subject, text):
                    return self.execute(body)
        return True

    def _loop(self, node: ShellLoop) -> bool | None:
        if node.words is not None:
            for value in [each for word in node.words for each in self.variables.words(word)]:
                if node.name:
                    self.variables.values[node.name] = value
                self.execute(node.body)
            return True
        decided = self.execute(node.condition or [])
        if (opposite(decided) if node.negated else decided) is not False:
            self.execute(node.body)
        return None

    def _simple(self, node: ShellSimple) -> bool | None:
        self._count += 1
        if self._count > MAX_COMMANDS:
            raise InputError(
                f"line {node.line}: more than {MAX_COMMANDS:,} commands", fix="is it the right file?"
            )
        words = list(node.words)
        own: dict[str, str] = {}
        while words and (match := _ASSIGNMENT.match(words[0].pieces[0].text if words[0].pieces else "")):
            if words[0].pieces[0].quoted:
                break
            self._assign(words.pop(0), match, own if len(node.words) > 1 else None)
        if not words:
            for name, text in own.items():
                self.variables.values[name] = text
            return True
        if words[0].bare in _DECLARES:
            return self._declare(words)
        if words[0].bare in ("[", "test"):
            return self._bracket(words)
        return self._command(node, [each for word in words for each in self.variables.words(word)], own)

    def _assign(self, word: ShellWord, match: re.Match[str], own: dict[str, str] | None) -> None:
        name, adds = match[1], bool(match[2])
        before = self.variables.values.get(name)
        if word.array is not None:
            items = [each for item in word.array for each in self.variables.words(item)]
            if adds and before is not None:
                items = [*([before] if isinstance(before, str) else before), *items]
            self.variables.values[name] = items
            return
        first = word.pieces[0]
        pieces = [first._replace(text=first.text[match.end() :]), *word.pieces[1:]]
        text = self.variables.joined(pieces)
        if own is not None:
            own[name] = text
        elif adds and isinstance(before, list):
            before[:1] = [before[0] + text] if before else [text]
        else:
            self.variables.values[name] = f"{before or ''}{text}" if adds else text

    def _declare(self, words: list[ShellWord]) -> bool:
        for word in words[1:]:
            match = _ASSIGNMENT.match(word.pieces[0].text) if word.pieces else None
            if match is not None:
                self._assign(word, match, None)
            name = match[1] if match else word.bare
            if name and words[0].bare == "export":
                self.variables.exported.add(name)
        return True

    def _bracket(self, words: list[ShellWord]) -> bool | None:
        texts, unset = expanded(words[1:], self.variables)
        if texts[-1:] == ["]"]:
            texts, unset = texts[:-1], unset[:-1]
        return of_words(texts, unset)

    def _command(self, node: ShellSimple, words: list[str], own: dict[str, str]) -> bool | None:
        if not words:
            return True
        self._write(node, words)
        name = words[0]
        if name in ("true", ":"):
            return True
        if name == "false":
            return False
        if name in ("exit", "return"):
            self._stopped = name
            return None
        if name == "set" and "--" in words:
            self.variables.arguments = words[words.index("--") + 1 :]
        if name == "shift":
            del self.variables.arguments[: int(words[1]) if words[1:] and words[1].isdigit() else 1]
        if name == "unset":
            for each in words[1:]:
                self.variables.values.pop(each, None)
        if name in self._functions:
            return self._call(self._functions[name], words[1:])
        inner = (1, " ".join(words[1:])) if name == "eval" else _inner(words)
        if inner is not None and not is_open(inner[1]):
            self.variables.values |= own
            outside, self._before = self._before, (*self._before, *words[: inner[0]])
            outcome = self._call(parse_script(inner[1], node.line), self.variables.arguments)
            self._before = outside
            return outcome
        if name.startswith("-") and name != "-":
            fix = "end the line before with a backslash, and nothing behind it"
            raise InputError(
                f"line {node.line}: a command cannot begin with a dash", value=shown(name), fix=fix
            )
        environment = {**self._exported(), **own}
        self.commands.append(ShellCommand(node.line, tuple(words), environment, self._before))
        return None

    def _exported(self) -> dict[str, str]:
        texts = {name: self.variables.text(name) for name in self.variables.exported}
        return {name: text for name, text in texts.items() if text is not None}

    def _call(self, body: list[Node], arguments: list[str]) -> bool | None:
        if self._calls >= _MAX_CALLS:
            return None
        self._calls += 1
        before, self.variables.arguments = self.variables.arguments, arguments
        outcome = self.execute(body)
        self.variables.arguments = before
        self._calls -= 1
        self._stopped = "exit" if self._stopped == "exit" else ""
        return outcome

    def _write(self, node: ShellSimple, words: list[str]) -> None:
        """The file that `cat`, `echo`, `printf` or `tee` writes."""
        words = words[1:] if words[0] == "sudo" and len(words) > 1 else words
        text = " ".join(each for each in words[1:] if not each.startswith("-")) + "\n"
        targets = words[1:] if words[0] == "tee" else []
        adds = "-a" in words and words[0] == "tee"
        for sign, word in node.redirects:
            if word.here is not None:
                text = self.variables.joined(word.here)
            elif sign == "<<<":
                text = self.variables.joined(word.pieces) + "\n"
            elif sign in _WRITES:
                targets, adds = [*targets, *self.variables.words(word)], adds or sign == ">>"
        has_text = words[0] in ("echo", "printf") or any(word.here for _, word in node.redirects)
        has_text = has_text or "<<<" in [sign for sign, _ in node.redirects]
        if words[0] == "tee" and not has_text and self._piped is not None:
            has_text, text = True, self._piped
        self._piped = text if has_text else None
        if has_text:
            for path in targets:
                if not path.startswith("-"):
                    self.files[path] = (self.files.get(path, "") if adds else "") + text

    def file(self, path: str) -> str | None:
        """The text that the script wrote there, or under that name elsewhere."""
        if path in self.files:
            return self.files[path]
        name = PurePosixPath(shown(path)).name
        alike = [text for each, text in self.files.items() if PurePosixPath(shown(each)).name == name]
        return alike[0] if len(alike) == 1 else None


def inner_script(words: Sequence[str]) -> str | None:
    """The script of `bash -c '…'`, also behind other words, and of `ssh HOST '…'` and its like; None for
    other commands, and in containers."""
    found = _inner(words)
    return None if found is None else found[1]


def _inner(words: Sequence[str]) -> tuple[int, str] | None:
    """Place and text of the script that a command hands to a shell."""
    for at, word in enumerate(words[:-2]):
        if PurePosixPath(word).name in ("docker", "podman", "nerdctl"):
            return None
        if PurePosixPath(word).name in _SHELLS and re.fullmatch(r"-[a-z]*c", words[at + 1]):
            return at, words[at + 2]
    if any(PurePosixPath(word).name in _CARRIERS for word in words[:2]):
        for at in range(len(words) - 1, 0, -1):
            script = _CARRIED.sub("", words[at])
            if len(script.split()) > 1 and _STARTS.search(script):
                return at, script
    return None


def _nodes(node: Node) -> Iterator[Node]:
    """A command and all those in it, functions left out."""
    yield node
    inner: list[Node] = []
    match node:
        case ShellChain():
            inner = [each for _, _, pipeline in node.links for each in pipeline]
        case ShellIf():
            inner = [each for condition, body in node.branches for each in (*(condition or ()), *body)]
        case ShellCase():
            inner = [each for _, body in node.branches for each in body]
        case ShellLoop() | ShellGroup():
            inner = node.body
    for each in inner:
        yield from _nodes(each)


_QUIET = ("echo", "printf", "exit", "return", "true", "false", ":", "sleep", "mkdir", "rm", "kill", "pkill")


def _has_effect(node: Node) -> bool:
    """Whether a branch could change what a server is started with."""
    simple = [each for each in _nodes(node) if isinstance(each, ShellSimple) and each.words]
    return any(each.words[0].bare not in _QUIET for each in simple)


def _is_server(node: Node) -> bool:
    words = [word.bare for each in _nodes(node) if isinstance(each, ShellSimple) for word in each.words]
    return any("serve" in word or "launch_server" in word for word in words)


def _texts(nodes: list[Node], variables: ShellVariables) -> Iterator[str]:
    """The words of conditions, for messages."""
    for node in nodes:
        for each in _nodes(node):
            match each:
                case ShellSimple():
                    yield from (shown(variables.joined(word.pieces)) for word in each.words)
                case ShellTest():
                    yield from map(shown, expanded(each.tokens, variables)[0])


def run_script(text: str, given: Mapping[str, str]) -> ShellRun:
    """A script, executed with these variables set.

    Raises:
        InputError: it is not valid shell text.
    """
    run = ShellRun(ShellVariables(dict(given)))
    run.execute(parse_script(text))
    return run
