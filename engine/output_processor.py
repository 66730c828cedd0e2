"""Engine side of output delivery: submits tokens and collects failed outputs."""

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
    """Decodes tokens to text outside the engine's thread.

    Texts with stop strings are decoded by the engine itself, since they determine the end of the output; such
    texts are passed on. All others are decoded here.
    """

    def __init__(self) -> None:
        self._thread = OutputThread()
        self.failed: deque[OutputStream] = deque()
        """Failed outputs not yet handled by the engine."""

    def open(self, sequence: Sequence, tokenizer: Tokenizer | None, on_delta: OnDelta | None) -> None:
        """Create the output of a request, if it delivers text or deltas.

        Args:
            on_delta: callback for every step, in the output thread.

        Raises:
            RuntimeError: the engine has been shut down, or the output thread has failed.
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
        """Submit the output of a step. The lists must not change afterwards.

        Args:
            tokens: one of each sequence; -1 = none.
            stopped: requests whose last token is a stop token.
            decoded: whether the engine has decoded some texts.
        """
        texts = _texts(sequences) if decoded else None
        self._thread.put(partial(_emitted, sequences, tokens, stopped, texts))

    def committed(self, blocks: Ordered[tuple[Sequence, Ordered[int]]], stopped: Iterable[Request]) -> None:
        """Submit the tokens of committed blocks."""
        if any(sequence.stream is not None for sequence, _ in blocks):
            texts = _texts([sequence for sequence, _ in blocks])
            self._thread.put(partial(_committed, blocks, stopped, texts))

    def ended(self, sequence: Sequence) -> None:
        """Submit the end of a sequence, whatever the reason, after all its tokens."""
        if sequence.stream is None:
            return
        text = None
        if sequence.output_text is not None:
            sequence.complete_text()
            text = sequence.output_text.text
        self._thread.put(partial(_ended, sequence, text))

    def settle(self) -> None:
        """Wait until everything submitted is delivered.

        Raises:
            RuntimeError: the output thread has failed.
        """
        self._thread.settle()

    def shutdown(self) -> None:
        """Deliver everything submitted, then refuse further submissions."""
        self._thread.shutdown()


def _texts(sequences: Ordered[Sequence]) -> list[str | None]:
    """Texts decoded by the engine; None for others."""
    return [sequence.output_text.text if sequence.output_text else None for sequence in sequences]


def _emitted(
    sequences: Ordered[Sequence],
    tokens: Ordered[int],
    stopped: Iterable[Request],
    texts: Ordered[str | None] | None,
) -> None:
    """Process a commit; called in the output thread."""
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
    """In the output thread. The sequence no longer changes."""
    assert sequence.stream is not None
    assert sequence.finish_reason is not None
    sequence.stream.end(
        sequence.request.id, sequence.finish_reason, sequence.stop_reason, sequence.error, text
    )
