"""Prompts of wanted lengths, with the prefixes that a workload shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from blis_py.requests.table import RequestTable

_WORDS = (
    *("time", "year", "work", "hand", "part", "life", "line", "case", "week", "side", "head", "home"),
    *("fact", "room", "word", "book", "idea", "game", "name", "team", "city", "door", "face", "land"),
)
"""Words of four letters, each one token of most vocabularies with the space before it."""


@dataclass(frozen=True, slots=True)
class Counting:
    """Tokens of a prompt of words, as a server counts them: `fixed + each * words`."""

    fixed: float = 0.0
    each: float = 1.0

    @classmethod
    def of(cls, words: tuple[int, int], tokens: tuple[int, int]) -> Counting:
        """Count by two prompts."""
        each = max((tokens[1] - tokens[0]) / (words[1] - words[0]), 1e-6)
        return cls(tokens[0] - each * words[0], each)

    def words(self, tokens: int) -> int:
        """Words whose prompt has so many tokens, or as near as can be."""
        return max(round((tokens - self.fixed) / self.each), 1)


class WordedPrompts:
    """Made-up prompts of a table; equal content gives equal text.

    Args:
        vocab: prompts are lists of ids in this range; None = they are texts.
        counting: of texts.
    """

    def __init__(
        self, table: RequestTable, seed: int, vocab: tuple[int, int] | None, counting: Counting
    ) -> None:
        self._table, self._seed, self._vocab, self._counting = table, seed, vocab, counting
        self._segments: dict[str, list[int]] = {}

    def prompt(self, row: int) -> str | list[int]:
        """The prompt of a row."""
        numbers = self.numbers(row)
        return numbers if self._vocab is not None else self.text(numbers)

    def numbers(self, row: int) -> list[int]:
        """The prompt as ids, or as the numbers of its words."""
        table, content = self._table, int(self._table.content[row])
        prompt_tokens = self._length(int(table.prompt_tokens[row]))
        prompt: list[int] = []
        for name, tokens in table.contents[content] if content >= 0 else ():
            prompt += self._segment(str(name), self._length(tokens))
        prompt = prompt[:prompt_tokens]
        return prompt + self._drawn(f"row {row}", prompt_tokens - len(prompt))

    def more(self, row: int, tokens: int) -> list[int]:
        """Further content of a later turn."""
        return self._drawn(f"more {row}", max(self._length(tokens), 1))

    def text(self, numbers: Sequence[int]) -> str:
        return "".join(f" {_WORDS[number % len(_WORDS)]}" for number in numbers)

    def _length(self, tokens: int) -> int:
        return tokens if self._vocab is not None else self._counting.words(tokens)

    def _segment(self, name: str, length: int) -> list[int]:
        known = self._segments.get(name, [])
        if len(known) < length:
            known = self._segments[name] = self._drawn(f"segment {name}", length)
        return known[:length]

    def _drawn(self, name: str, length: int) -> list[int]:
        """Numbers of a stream of their own; longer draws begin with shorter ones."""
        random = Random(f"{self._seed} {name}")
        low, high = self._vocab or (0, len(_WORDS))
        return [low + int(random.random() * (high - low)) for _ in range(max(length, 0))]
