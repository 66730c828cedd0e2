"""The engine's side of delivering outputs: hands over tokens, and learns which outputs have failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from functools import partial

from blis_py.core.request import Request
from engine.models.tokenizer import Tokenizer
from engine.output_stream import OnDelta, OutputStream, OutputThread
from engine.output_text import OutputText
from engine.sequence import Sequence


class OutputProcessor:
    """Turns tokens into text beside the engine's thread.

    A text in which stop strings are looked for is decoded by the engine itself, since it decides who is over;
    that one is handed over as it is. All others are decoded here.
    """

    def __init__(self) -> None:
        self._thread = OutputThread()
        self.failed: deque[OutputStream] = deque()
        """Outputs that nobody can make, or nobody takes, until somebody has dealt with them."""

    def open(self, sequence: Sequence, tokenizer: Tokenizer | None, on_delta: OnDelta | None) -> None:
        """Prepare the output of a request, where anybody may want one.

        Args:
            on_delta: is told of every step, in the output thread.

        Raises:
            RuntimeError: the engine has been shut down, or the output thread has broken down.
        """
        params = sequence.params
        with_text = tokenizer is not None and params.detokenize
        if not with_text and on_delta is None:
            return
        self._thread.check()
        decoder, held_back = None, 0
        if params.stop_strings:
            if not params.include_stop_str_in_output:
                held_back = max(map(len, params.stop_strings)) - 1
        elif with_text:
            assert tokenizer is not None
            decoder = OutputText(tokenizer)
        sequence.stream = OutputStream(decoder, held_back, on_delta, self._thread.settle, self.failed.append)

    def emitted(
        self, sequences: Ordered[Sequence], tokens: Ordered[int], stopped: Iterable[Request], *, decoded: bool
    ) -> None:
        """What a step brought. The lists must not change any more.

        Args:
            tokens: one of each sequence; -1 = none.
            stopped: whose token was told to be the end.
            decoded: whether some texts have been decoded by the engine.
        """
        texts = _texts(sequences) if decoded else None
        self._thread.put(partial(_emitted, sequences, tokens, stopped, texts))

    def committed(self, blocks: Ordered[tuple[Sequence, Ordered[int]]], stopped: Iterable[Request]) -> None:
        """The same for the tokens of blocks."""
        if any(sequence.stream is not None for sequence, _ in blocks):
            texts = _texts([sequence for sequence, _ in blocks])
            self._thread.put(partial(_committed, blocks, stopped, texts))

    def ended(self, sequence: Sequence) -> None:
        """It is over, for whatever reason; all its tokens have been handed over."""
        if sequence.stream is None:
            return
        text = None
        if sequence.output_text is not None:
            sequence.complete_text()
            text = sequence.output_text.text
        self._thread.put(partial(_ended, sequence, text))

    def settle(self) -> None:
        """Wait until everything that was handed over is delivered.

        Raises:
            RuntimeError: the output thread has broken down.
        """
        self._thread.settle()

    def shutdown(self) -> None:
        """Deliver what was handed over; nothing can be handed over any more."""
        self._thread.shutdown()


def _texts(sequences: Ordered[Sequence]) -> list[str | None]:
    """What has been decoded, where the engine does."""
    return [sequence.output_text.text if sequence.output_text else None for sequence in sequences]


def _emitted(
    sequences: Ordered[Sequence],
    tokens: Ordered[int],
    stopped: Iterable[Request],
    texts: Ordered[str | None] | None,
) -> None:
    """In the output thread."""
    pairs = zip(sequences, tokens, strict=True)
    _committed([(sequence, [token] if token >= 0 else []) for sequence, token in pairs], stopped, texts)


def _committed(
    blocks: Ordered[tuple[Sequence, Ordered[int]]],
    stopped: Iterable[Request],
    texts: Ordered[str | None] | None,
) -> None:
    """In the output thread."""
    ends = set(stopped)
    for i, (sequence, ids) in enumerate(blocks):
        stream = sequence.stream
        if stream is not None and ids:
            is_text = not (ids[-1] in sequence.stop_ids and sequence.request in ends)
            stream.add(sequence.request.id, list(ids), is_text, None if texts is None else texts[i])


def _ended(sequence: Sequence, text: str | None) -> None:
    """In the output thread. Nothing of the sequence changes any more."""
    assert sequence.stream is not None
    assert sequence.finish_reason is not None
    sequence.stream.end(
        sequence.request.id, sequence.finish_reason, sequence.stop_reason, sequence.error, text
    )
