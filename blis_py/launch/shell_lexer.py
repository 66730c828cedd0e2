"""Shell text as tokens: words with their quotes and expansions, operators, here-documents."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from blis_py.errors import InputError

_OPERATORS = (
    *("&>>", "<<<", "<<-", ";;&", "&&", "||", ";;", ";&", ">>", "<<", "&>", ">&", "<&", ">|", "|&"),
    *("|", "&", ";", "<", ">", "(", ")", "\n"),
)
_HERE = ("<<", "<<-")
_ASSIGNS = re.compile(r"\w+\+?=")
_SIMPLE = re.compile(r"\w+|[@*#?!$-]")


class WordPiece(NamedTuple):
    """Part of a word: `text`, `variable` (`${…}`), `output` (`$(…)`) or `number` (`$((…))`)."""

    kind: str
    text: str
    quoted: bool


@dataclass
class ShellWord:
    """A word; with `array`, the assignment of a list."""

    line: int
    pieces: list[WordPiece] = field(default_factory=list)
    array: list[ShellWord] | None = None
    here: list[WordPiece] | None = None
    """Text of the here-document that this word ends."""

    @property
    def bare(self) -> str:
        """The text of a word without quotes and expansions; empty for any other."""
        plain = all(piece.kind == "text" and not piece.quoted for piece in self.pieces)
        return "".join(piece.text for piece in self.pieces) if plain else ""


class ShellOperator(NamedTuple):
    """An operator, or `((…))` as a whole."""

    text: str
    line: int


Token = ShellWord | ShellOperator


class _Lexer:
    def __init__(self, text: str, line: int) -> None:
        self.text, self.at, self.line = text, 0, line
        self.tokens: list[Token] = []
        self._here: list[tuple[ShellWord, bool, bool]] = []

    def error(self, problem: str) -> InputError:
        return InputError(f"line {self.line}: {problem}", fix="correct the script")

    def peek(self, length: int = 1) -> str:
        return self.text[self.at : self.at + length]

    def take(self, length: int = 1) -> str:
        taken = self.peek(length)
        self.at += length
        self.line += taken.count("\n")
        return taken

    def run(self) -> list[Token]:
        while self.at < len(self.text):
            self._next()
        self._read_here_documents()
        return self.tokens

    def _next(self) -> None:
        mark = self.peek()
        if mark in " \t\r":
            self.take()
        elif self.peek(2) == "\\\n":
            self.take(2)
        elif mark == "#":
            while self.peek() not in ("\n", ""):
                self.take()
        elif self.peek(2) == "((" and self._at_command():
            self._arithmetic()
        elif operator := self._operator():
            self._add_operator(operator)
        else:
            self.tokens.append(self.word())

    def _at_command(self) -> bool:
        last = self.tokens[-1] if self.tokens else ShellOperator("\n", 0)
        starts = ("if", "elif", "while", "until", "for", "then", "do", "else", "!")
        return isinstance(last, ShellOperator) or last.bare in starts

    def _arithmetic(self) -> None:
        end = self.text.find("))", self.at)
        if end < 0:
            raise self.error("(( is not closed")
        line = self.line
        self.tokens.append(ShellOperator(self.take(end + 2 - self.at), line))

    def _operator(self) -> str:
        return next((each for each in _OPERATORS if self.peek(len(each)) == each), "")

    def _add_operator(self, operator: str) -> None:
        line, last = self.line, self.tokens[-1] if self.tokens else None
        stream = operator[0] in "<>" and self.text[self.at - 1 : self.at].isdigit()
        if stream and isinstance(last, ShellWord) and last.bare.isdigit():
            self.tokens.pop()  # the number of a stream: 2> file
        self.take(len(operator))
        self.tokens.append(ShellOperator(operator, line))
        if operator in _HERE:
            while self.peek() in (" ", "\t"):
                self.take()
            word = self.word()
            quoted = any(piece.quoted for piece in word.pieces)
            self.tokens.append(word)
            self._here.append((word, quoted, operator == "<<-"))
        elif operator == "\n":
            self._read_here_documents()

    def _read_here_documents(self) -> None:
        for word, quoted, tabs in self._here:
            end = "".join(piece.text for piece in word.pieces)
            lines: list[str] = []
            while self.at < len(self.text):
                stop = self.text.find("\n", self.at)
                line = self.take((len(self.text) if stop < 0 else stop + 1) - self.at)
                if (line.lstrip("\t") if tabs else line).rstrip("\n") == end:
                    break
                lines.append(line.lstrip("\t") if tabs else line)
            body = "".join(lines)
            word.here = [WordPiece("text", body, True)] if quoted else pieces_of(body, word.line)
        self._here.clear()

    def word(self) -> ShellWord:
        word, text = ShellWord(self.line), ""
        while self.at < len(self.text):
            mark = self.peek()
            if mark in " \t\r\n" or (mark in "|&;<>()" and not self._in_pattern(text, mark)):
                if mark == "(" and _ASSIGNS.fullmatch(text) and not word.pieces:
                    word.array = self._array()
                break
            if mark == "\\":
                self.take()
                escaped = self.take()
                if escaped != "\n":
                    self._flush(word, text)
                    text = ""
                    word.pieces.append(WordPiece("text", escaped, True))
            elif mark in "'\"$`":
                self._flush(word, text)
                text = ""
                self._quoted_or_expanded(word, mark)
            else:
                text += self.take()
        self._flush(word, text)
        return word

    @staticmethod
    def _in_pattern(text: str, mark: str) -> bool:
        """Whether a bracket belongs to a pattern such as `@(a|b)`."""
        return mark == "(" and text[-1:] in tuple("@?+!*")

    @staticmethod
    def _flush(word: ShellWord, text: str) -> None:
        if text:
            word.pieces.append(WordPiece("text", text, False))

    def _array(self) -> list[ShellWord]:
        self.take()
        words: list[ShellWord] = []
        while self.peek() != ")":
            if not self.peek():
                raise self.error("a list in brackets is not closed")
            if self.peek() in " \t\r\n":
                self.take()
            elif self.peek(2) == "\\\n":
                self.take(2)
            elif self.peek() == "#":
                while self.peek() not in ("\n", ""):
                    self.take()
            elif self.peek() in "|&;<>(":
                words.append(ShellWord(self.line, [WordPiece("text", self.take(), False)]))
            else:
                words.append(self.word())
        self.take()
        return words

    def _quoted_or_expanded(self, word: ShellWord, mark: str) -> None:
        if mark == "'":
            word.pieces.append(WordPiece("text", self._until("'"), True))
        elif self.peek(2) == "$'":
            self.take()
            word.pieces.append(WordPiece("text", self._until("'"), True))
        elif mark == '"':
            line = self.line
            word.pieces += pieces_of(self._double(), line) or [WordPiece("text", "", True)]
        else:
            word.pieces.append(self.expansion(False))

    def _until(self, mark: str) -> str:
        self.take()
        end = self.text.find(mark, self.at)
        if end < 0:
            raise self.error(f"{mark} is not closed")
        return self.take(end + 1 - self.at)[:-1]

    def _double(self) -> str:
        """The text between double quotes, with its expansions unread."""
        self.take()
        begin = self.at
        while self.peek() != '"':
            if not self.peek():
                raise self.error('" is not closed')
            if self.peek() == "\\":
                self.take(2)
            elif self.peek(2) in ("$(", "${") or self.peek() == "`":
                self.expansion(True)
            else:
                self.take()
        text = self.text[begin : self.at]
        self.take()
        return text

    def expansion(self, quoted: bool) -> WordPiece:
        """Piece that begins with `$` or a backquote at this place."""
        if self.peek() == "`":
            return WordPiece("output", self._until("`"), quoted)
        self.take()
        if self.peek(2) == "((":
            return WordPiece("number", self._nested("(", ")")[1:-1], quoted)
        if self.peek() == "(":
            return WordPiece("output", self._nested("(", ")"), quoted)
        if self.peek() == "{":
            return WordPiece("variable", self._nested("{", "}"), quoted)
        simple = _SIMPLE.match(self.text, self.at)
        if simple is None:
            return WordPiece("text", "$", True)
        name = simple[0]
        if name[0].isdigit():
            name = name[0]
        return WordPiece("variable", self.take(len(name)), quoted)

    def _nested(self, opens: str, closes: str) -> str:
        self.take()
        begin, depth = self.at, 1
        while depth:
            mark = self.peek()
            if not mark:
                raise self.error(f"{opens} is not closed")
            if mark == "\\":
                self.take(2)
                continue
            if mark == "'" and opens == "(":
                self._until("'")
                continue
            depth += (mark == opens) - (mark == closes)
            self.take()
        return self.text[begin : self.at - 1]


def tokens_of(text: str, line: int = 1) -> list[Token]:
    """The tokens of a script.

    Raises:
        InputError: a quote or a bracket is not closed.
    """
    return _Lexer(text.replace("\r\n", "\n"), line).run()


def pieces_of(text: str, line: int) -> list[WordPiece]:
    """The pieces of text in double quotes, or of a here-document.

    Raises:
        InputError: a bracket is not closed.
    """
    lexer, plain, pieces = _Lexer(text, line), "", []
    while lexer.peek():
        mark = lexer.peek()
        if mark == "\\" and lexer.peek(2)[1:] in ("\\", '"', "$", "`", "\n"):
            lexer.take()
            plain += lexer.take().replace("\n", "")
        elif mark in "$`":
            if plain:
                pieces.append(WordPiece("text", plain, True))
            plain = ""
            pieces.append(lexer.expansion(True))
        else:
            plain += lexer.take()
    if plain:
        pieces.append(WordPiece("text", plain, True))
    return pieces
