"""One request in progress: its sequences, and the results of all of them in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from blis_py.serve.backend import Ask, Backend, Piece, TokenLogprob
from blis_py.serve.errors import ApiError
from blis_py.serve.mailbox import Mailbox
from blis_py.serve.metrics import SequenceMetrics, ServeMetrics


@dataclass(slots=True)
class SequenceChoice:
    """One sequence, as far as it has come."""

    index: int
    ask: Ask
    metrics: SequenceMetrics
    text: str = ""
    tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0


Came = tuple[SequenceChoice, Piece, int]
"""A choice, a piece of it, and the completion tokens of the whole request up to it."""


class Generation:
    """The sequences of one request.

    Args:
        asks: one for each choice.

    Raises:
        ApiError: refused; then nothing is in progress.
    """

    def __init__(self, backend: Backend, asks: Sequence[Ask], metrics: ServeMetrics) -> None:
        self._backend, self._mailbox = backend, Mailbox(backend.now_s)
        self.pod, self.completion_tokens = "", 0
        self.choices: list[SequenceChoice] = []
        try:
            for index, ask in enumerate(asks):
                self.pod = backend.add(ask, self._mailbox.slot(index)) or self.pod
                self.choices.append(SequenceChoice(index, ask, metrics.begin(len(ask.prompt_ids))))
        except BaseException:
            self.close()
            raise
        self.unfinished = len(self.choices)

    async def pieces(self) -> AsyncIterator[list[Came]]:
        """Pieces as they come, grouped by arrival.

        Raises:
            ApiError: a sequence has failed; the others are aborted.
        """
        while self.unfinished:
            together = [self._took(*arrival) for arrival in await self._mailbox.take()]
            yield together
            for _, piece, _ in together:
                if piece.finish_reason in ("error", "timeout"):
                    self.close()
                    raise ApiError(piece.status, piece.error or "the request has timed out")

    def _took(self, index: int, piece: Piece, time_s: float) -> Came:
        choice = self.choices[index]
        if piece.token_ids:
            choice.tokens += len(piece.token_ids)
            choice.metrics.tokens(len(piece.token_ids), time_s)
        if piece.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason
            if piece.timing is not None:
                choice.cached_tokens = piece.timing.cached_tokens
            choice.metrics.ended(piece.finish_reason, piece.timing, time_s)
            self.unfinished -= 1
        self.completion_tokens += len(piece.token_ids)
        return choice, piece, self.completion_tokens

    async def result(self) -> list[SequenceChoice]:
        """Wait for everything.

        Raises:
            ApiError: a sequence has failed.
        """
        async for together in self.pieces():
            for choice, piece, _ in together:
                choice.text += piece.text
                choice.token_ids += piece.token_ids
                if piece.logprobs:
                    choice.logprobs += piece.logprobs
        return self.choices

    def close(self) -> None:
        """Abort what is still in progress."""
        for choice in self.choices:
            if choice.finish_reason is None:
                self._backend.abort(choice.ask.id)
                choice.finish_reason = "abort"
                choice.metrics.ended("abort", None, self._backend.now_s())
        self.unfinished = 0
