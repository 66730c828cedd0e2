"""One request in progress: its sequences, and the results of all of them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from blis_py.serve._mailbox import Arrival, Mailbox
from blis_py.serve._metrics import SequenceMetrics, ServeMetrics
from blis_py.serve.backend import Backend, Piece, Submission, TokenLogprob
from blis_py.serve.errors import ApiError


@dataclass(slots=True)
class SequenceChoice:
    """One sequence and its output so far."""

    index: int
    submission: Submission
    metrics: SequenceMetrics
    text: str = ""
    tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    cached_tokens: int = 0


DeliveredPiece = tuple[SequenceChoice, Piece, int]
"""A choice, a piece of it, and the completion tokens of the whole request up to it."""


class Generation:
    """The sequences of one request.

    Args:
        submissions: one for each choice.

    Raises:
        ApiError: refused; then nothing is in progress.
    """

    def __init__(self, backend: Backend, submissions: Sequence[Submission], metrics: ServeMetrics) -> None:
        self._backend, self._mailbox = backend, Mailbox(backend.now_s)
        self.pod, self.completion_tokens = "", 0
        self.choices: list[SequenceChoice] = []
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            for index, submission in enumerate(submissions):
                self.pod = backend.add(submission, self._mailbox.slot(index)) or self.pod
                self.choices.append(
                    SequenceChoice(index, submission, metrics.begin(len(submission.prompt_ids)))
                )
        except BaseException:
            self.close()
            raise
        self.unfinished = len(self.choices)

    def follow(self, receive: Callable[[list[DeliveredPiece]], None]) -> asyncio.Future[None]:
        """Call `receive` with pieces as they come, grouped by arrival.

        Returns:
            Done when every sequence has ended; an ApiError when one has failed, and the others are aborted.
        """

        def arrived(arrivals: list[Arrival]) -> None:
            if not self._over.done():
                together = [self._took(*arrival) for arrival in arrivals]
                try:
                    receive(together)
                    self._check(together)
                except Exception as error:
                    self._over.set_exception(error)
                    self.close()

        self._mailbox.open(arrived)
        return self._over

    def _check(self, together: list[DeliveredPiece]) -> None:
        """
        Raises:
            ApiError: a sequence has failed.
        """
        for _, piece, _ in together:
            if piece.finish_reason in ("error", "timeout"):
                raise ApiError(piece.status, piece.error or "the request has timed out")
        if not self.unfinished:
            self._over.set_result(None)

    def _took(self, index: int, piece: Piece, time_s: float) -> DeliveredPiece:
        choice = self.choices[index]
        if piece.token_ids:
            choice.tokens += len(piece.token_ids)
            choice.metrics.tokens(len(piece.token_ids), time_s)
        if piece.finish_reason is not None:
            choice.finish_reason, choice.stop_reason = piece.finish_reason, piece.stop_reason
            if piece.timing is not None:
                choice.cached_tokens = piece.timing.cached_tokens
                self.pod = self.pod or piece.timing.pod
            choice.metrics.ended(piece.finish_reason, piece.timing, time_s)
            self.unfinished -= 1
        self.completion_tokens += len(piece.token_ids)
        return choice, piece, self.completion_tokens

    async def result(self) -> list[SequenceChoice]:
        """Wait for everything.

        Raises:
            ApiError: a sequence has failed.
        """
        await self.follow(_collect)
        return self.choices

    def close(self) -> None:
        """Abort what is still in progress."""
        for choice in self.choices:
            if choice.finish_reason is None:
                self._backend.abort(choice.submission.id)
                choice.finish_reason = "abort"
                choice.metrics.ended("abort", None, self._backend.now_s())
        self.unfinished = 0
        self._over.cancel()


def _collect(together: list[DeliveredPiece]) -> None:
    for choice, piece, _ in together:
        choice.text += piece.text
        choice.token_ids += piece.token_ids
        if piece.logprobs:
            choice.logprobs += piece.logprobs
