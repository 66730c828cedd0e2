"""The text of one output as its tokens come, and the search for stop strings in it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.models.tokenizer import Detokenizer, Tokenizer


class OutputText:
    """Text so far, cut at the stop string that ended it."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), include_stop: bool = False) -> None:
        self.text = ""
        self._detokenizer = Detokenizer(tokenizer)
        self._stop, self._include = stop, include_stop

    def append(self, ids: Sequence[int]) -> None:
        """Decode further tokens."""
        for token in ids:
            self.text += self._detokenizer.add(token)

    def append_and_stop(self, token: int, look: bool = True) -> str | None:
        """Decode one more token; return the first stop string it completes, if any, and cut the text there.

        Of several matches the one that begins first counts.

        Args:
            look: whether to search for stop strings.
        """
        before = len(self.text)
        self.append([token])
        if not look or len(self.text) == before:
            return None
        places = [
            (place, stop)
            for stop in self._stop
            if (place := self.text.find(stop, max(before - len(stop) + 1, 0))) >= 0
        ]
        if not places:
            return None
        place, stop = min(places)
        self.text = self.text[: place + len(stop) * self._include]
        return stop

    def flush(self) -> None:
        """End the text: an incomplete character is emitted as it is."""
        self.text += self._detokenizer.finish()
