"""The commands of a shell script as a tree."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from blis_py.errors import InputError
from blis_py.launch.shell_lexer import ShellOperator, ShellWord, Token, tokens_of

_REDIRECTS = (">", ">>", "<", "<<", "<<-", "<<<", "&>", "&>>", ">&", "<&", ">|")
_ENDS = ("then", "do", "done", "fi", "else", "elif", "esac", "}")
_SEPARATORS = (";", "&", "\n")
_LOOPS = ("while", "until")
MAX_DEPTH = 40
"""Deepest nesting of commands."""


@dataclass
class ShellSimple:
    """A command with its words and redirections, as (operator, target)."""

    line: int
    words: list[ShellWord] = field(default_factory=list)
    redirects: list[tuple[str, ShellWord]] = field(default_factory=list)


@dataclass
class ShellTest:
    """`[[ … ]]` or `(( … ))`, with its tokens."""

    line: int
    tokens: list[Token]


@dataclass
class ShellChain:
    """Commands of which each depends on those before: (`&&`, `||` or empty, negated, pipeline)."""

    line: int
    links: list[tuple[str, bool, list[Node]]]


@dataclass
class ShellIf:
    """Conditions with their commands; None = else."""

    line: int
    branches: list[tuple[list[Node] | None, list[Node]]]


@dataclass
class ShellCase:
    """A word, and patterns with their commands."""

    line: int
    subject: ShellWord
    branches: list[tuple[list[ShellWord], list[Node]]]


@dataclass
class ShellLoop:
    """`for` over words, or `while` and `until` with a condition."""

    line: int
    name: str
    words: list[ShellWord] | None
    condition: list[Node] | None
    negated: bool
    body: list[Node]


@dataclass
class ShellGroup:
    """Commands in brackets or braces."""

    line: int
    body: list[Node]


@dataclass
class ShellFunction:
    """A function that is defined."""

    line: int
    name: str
    body: list[Node]


Node = ShellSimple | ShellTest | ShellChain | ShellIf | ShellCase | ShellLoop | ShellGroup | ShellFunction


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens, self.at, self.depth = tokens, 0, 0

    @property
    def line(self) -> int:
        near = self.tokens[min(self.at, len(self.tokens) - 1) :][:1]
        return near[0].line if near else 0

    def error(self, problem: str) -> InputError:
        return InputError(f"line {self.line}: {problem}", fix="correct the script")

    def peek(self) -> Token | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def operator(self, *texts: str) -> bool:
        token = self.peek()
        return isinstance(token, ShellOperator) and token.text in texts

    def reserved(self, *texts: str) -> bool:
        token = self.peek()
        return isinstance(token, ShellWord) and token.bare in texts

    def expect(self, text: str) -> None:
        if not (self.reserved(text) or self.operator(text)):
            raise self.error(f"{text} is missing")
        self.at += 1

    def skip(self, *operators: str) -> None:
        while self.operator(*operators):
            self.at += 1

    def commands(self, *ends: str) -> list[Node]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"commands are nested more than {MAX_DEPTH} deep")
        found: list[Node] = []
        self.skip(*_SEPARATORS)
        while self.peek() is not None and not self.reserved(*ends) and not self.operator(*ends):
            if self.reserved(*_ENDS) or self.operator(")", ";;"):
                raise self.error(f"{self._text()} has no beginning")
            found.append(self._chain())
            self.skip(*_SEPARATORS)
        self.depth -= 1
        return found

    def _text(self) -> str:
        token = self.peek()
        return token.bare if isinstance(token, ShellWord) else token.text if token else "the end"

    def _chain(self) -> Node:
        line, link = self.line, ""
        links: list[tuple[str, bool, list[Node]]] = []
        while True:
            negated = False
            while self.reserved("!"):
                self.at, negated = self.at + 1, not negated
            pipeline = [self._command()]
            while self.operator("|", "|&"):
                self.at += 1
                self.skip("\n")
                pipeline.append(self._command())
            links.append((link, negated, pipeline))
            if not self.operator("&&", "||"):
                break
            link = self._text()
            self.at += 1
            self.skip("\n")
        if len(links) == 1 and not links[0][1] and len(links[0][2]) == 1:
            return links[0][2][0]
        return ShellChain(line, links)

    def _command(self) -> Node:
        token, line = self.peek(), self.line
        if isinstance(token, ShellOperator):
            if token.text.startswith("(("):
                self.at += 1
                return ShellTest(line, [token])
            if token.text == "(":
                self.at += 1
                return self._with_redirects(ShellGroup(line, self._closed(")")))
            if token.text not in _REDIRECTS:
                raise self.error(f"{token.text.strip() or 'a line'} stands where a command is expected")
        for word, parse in (("if", self._if), ("case", self._case), ("for", self._for), ("[[", self._test)):
            if self.reserved(word):
                return self._with_redirects(parse())
        if self.reserved(*_LOOPS):
            return self._with_redirects(self._while())
        if self.reserved("{"):
            self.at += 1
            return self._with_redirects(ShellGroup(line, self._closed("}")))
        return self._simple()

    def _closed(self, end: str) -> list[Node]:
        body = self.commands(end)
        self.expect(end)
        return body

    def _with_redirects(self, node: Node) -> Node:
        """The command without its redirections, which change no server."""
        while self.operator(*_REDIRECTS):
            self.at += 2
        return node

    def _if(self) -> Node:
        line, branches = self.line, []
        self.at += 1
        condition: list[Node] | None = self.commands("then")
        while True:
            if condition is not None:
                self.expect("then")
            branches.append((condition, self.commands("elif", "else", "fi")))
            if self.reserved("fi"):
                self.at += 1
                return ShellIf(line, branches)
            if not self.reserved("elif", "else"):
                raise self.error("fi is missing")
            last = self.reserved("else")
            self.at += 1
            condition = None if last else self.commands("then")

    def _case(self) -> Node:
        line = self.line
        self.at += 1
        subject = self.peek()
        if not isinstance(subject, ShellWord):
            raise self.error("case has no word")
        self.at += 1
        self.skip("\n")
        self.expect("in")
        self.skip("\n")
        branches: list[tuple[list[ShellWord], list[Node]]] = []
        while not self.reserved("esac"):
            if self.peek() is None:
                raise self.error("esac is missing")
            self.skip("(")
            patterns: list[ShellWord] = []
            while not self.operator(")"):
                token = self.peek()
                if token is None:
                    raise self.error("a pattern is not closed")
                if isinstance(token, ShellWord):
                    patterns.append(token)
                self.at += 1
            self.at += 1
            branches.append((patterns, self.commands("esac", ";;", ";&", ";;&")))
            self.skip(";;", ";&", ";;&", "\n")
        self.at += 1
        return ShellCase(line, subject, branches)

    def _for(self) -> Node:
        line = self.line
        self.at += 1
        token = self.peek()
        name = token.bare if isinstance(token, ShellWord) else ""
        self.at += 1
        words: list[ShellWord] | None = None
        self.skip("\n")
        if self.reserved("in"):
            self.at, words = self.at + 1, []
            while isinstance(token := self.peek(), ShellWord):
                words.append(token)
                self.at += 1
        self.skip(";", "\n")
        self.expect("do")
        body = self.commands("done")
        self.expect("done")
        return ShellLoop(line, name, words, None, False, body)

    def _while(self) -> Node:
        line, negated = self.line, self.reserved("until")
        self.at += 1
        condition = self.commands("do")
        self.expect("do")
        body = self.commands("done")
        self.expect("done")
        return ShellLoop(line, "", None, condition, negated, body)

    def _test(self) -> Node:
        line, tokens = self.line, []
        self.at += 1
        while not self.reserved("]]"):
            token = self.peek()
            if token is None:
                raise self.error("]] is missing")
            tokens.append(token)
            self.at += 1
        self.at += 1
        return ShellTest(line, tokens)

    def _simple(self) -> Node:
        found = ShellSimple(self.line)
        if self.reserved("function"):
            self.at += 1
            return self._function()
        while (token := self.peek()) is not None:
            if isinstance(token, ShellWord):
                found.words.append(token)
                self.at += 1
                continue
            if token.text == "(" and len(found.words) == 1 and re.fullmatch(r"[\w:.-]+", found.words[0].bare):
                self.at -= 1
                return self._function()
            if token.text not in _REDIRECTS:
                break
            self.at += 1
            target = self.peek()
            if not isinstance(target, ShellWord):
                raise self.error(f"{token.text} leads nowhere")
            self.at += 1
            found.redirects.append((token.text, target))
        if self.operator("("):
            raise self.error("( stands where no bracket is expected")
        return found

    def _function(self) -> Node:
        token, line = self.peek(), self.line
        name = token.bare if isinstance(token, ShellWord) else ""
        self.at += 1
        if self.operator("("):
            self.at += 1
            self.expect(")")
        self.skip("\n")
        body = self._command()
        return ShellFunction(line, name, [body])


def parse_script(text: str, line: int = 1) -> list[Node]:
    """The commands of a script.

    Args:
        line: number of its first line, for messages.

    Raises:
        InputError: a quote, a bracket or a command is not closed.
    """
    return _Parser(tokens_of(text, line)).commands()
