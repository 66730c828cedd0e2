"""A request with its tokens: what the engine knows beyond the scheduler's `Request`."""

from __future__ import annotations

from collections.abc import Sequence as Ordered

import numpy as np
from numpy.typing import NDArray

from blis_py.core.request import FinishReason, Request
from engine.grammar.state import Grammar
from engine.models.tokenizer import Tokenizer
from engine.output_stream import OutputStream, told
from engine.output_text import OutputText
from engine.sampling_params import SamplingParams

NO_SLOT = -1

_REASONS = {FinishReason.TIMEOUT: "timeout", FinishReason.ABORT: "abort"}

TokenLogprobs = dict[int, float]
"""Log-probability by token id, of one emitted token and of the most likely ones beside it."""


class Roster(list[Request]):
    """The requests that decode in a step, in running order.

    An object never changes. Engine, executor and step log keep it from step to step and know by `is` that the
    same requests decode as before; another object may, but need not, list others.
    """


class Sequence:
    """One request in the engine.

    Args:
        index: running number, also `request.row`.
        request: the scheduler's view; it owns status and block table.
        seed: of its random numbers.
        stop_ids: tokens that end it.
        grammar: what its output keeps to, if anything.
    """

    __slots__ = (
        "error",
        "finish_ns",
        "finish_reason",
        "first_token_ns",
        "grammar",
        "index",
        "logprobs",
        "output_ids",
        "output_text",
        "params",
        "prompt",
        "prompt_ids",
        "request",
        "sampling",
        "seed",
        "slot",
        "stop_ids",
        "stop_reason",
        "stream",
        "table_changed",
        "watched",
    )

    def __init__(
        self,
        index: int,
        request: Request,
        prompt_ids: Ordered[int] | NDArray[np.int64],
        params: SamplingParams,
        seed: int,
        stop_ids: frozenset[int],
        tokenizer: Tokenizer | None,
        prompt: str | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        self.index = index
        self.request = request
        self.prompt = prompt
        self.output_ids: list[int] = []
        """Tokens emitted so far; the one that ended it included."""
        self.prompt_ids: NDArray[np.int64] = np.asarray(prompt_ids, dtype=np.int64)
        self.params = params
        self.seed = seed
        self.sampling = (params, seed)
        """What its tokens are drawn with, known again by `is`."""
        self.stop_ids = stop_ids
        self.output_text: OutputText | None = None
        """The text as far as the engine itself has to know it, to look for stop strings."""
        if params.stop_strings and tokenizer is not None:
            include = params.include_stop_str_in_output
            self.output_text = OutputText(tokenizer, params.stop_strings, include)
        self.stream: OutputStream | None = None
        """Of what is delivered, where anybody may want it."""
        self.grammar = grammar
        self.watched = bool(params.stop_strings) or grammar is not None
        """Whether every token has to be looked at."""
        self.slot = NO_SLOT
        """Its row in the per-slot arrays while it runs."""
        self.table_changed = False
        """Whether its block table may no longer be what stands in that row."""
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        """`stop`, `length`, `abort`, `timeout` or `error`; `None` while it is not finished."""
        self.stop_reason: int | str | None = None
        """The stop token or stop string that ended it; `None` for the model's own end of sequence."""
        self.error: str | None = None
        self.first_token_ns = -1
        self.finish_ns = -1

    def tokens(self, start: int, end: int) -> NDArray[np.int64]:
        """Prompt and emitted tokens from position `start` to before `end`."""
        prompt = self.prompt_ids
        if end <= len(prompt):
            return prompt[start:end]
        emitted = self.output_ids[max(start - len(prompt), 0) : end - len(prompt)]
        return np.concatenate((prompt[start:], np.array(emitted, dtype=np.int64)))

    def stops_at(self, token: int) -> bool:
        """Whether `token`, the latest one, ends the sequence by what it is; notes why.

        Where there are stop strings to look for, the text is brought up to date; a grammar goes on by the
        token. Where that is none it allows, the sequence has failed, and the token is not part of it.
        """
        grammar = self.grammar
        if grammar is None:
            return self._told_to_stop(token)
        if not grammar.accept(token):
            self._discard_latest()
            self.finish_reason, self.error = "error", grammar.stuck()
        elif not self._told_to_stop(token) and grammar.complete and not grammar.holding_back:
            self.finish_reason = "stop"
        return self.finish_reason is not None

    def _discard_latest(self) -> None:
        self.output_ids.pop()
        if self.params.logprobs is not None:
            self.logprobs.pop()

    def _told_to_stop(self, token: int) -> bool:
        """By a token or a string."""
        late_enough = len(self.output_ids) > self.params.min_tokens
        if token in self.stop_ids and late_enough:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self.params.stop_token_ids else None
        elif self.output_text is not None:
            try:
                found = self.output_text.append_and_stop(token, look=late_enough)
            except Exception as error:  # of the tokenizer: nobody can say whether it ends
                self.finish_reason, self.error = "error", told(error)
            else:
                if found is not None:
                    self.finish_reason, self.stop_reason = "stop", found
        return self.finish_reason is not None

    def finished(self, now_ns: int) -> None:
        """The scheduler has let it go."""
        self.finish_ns = now_ns
        if self.finish_reason is None:
            reason = self.request.finish_reason
            assert reason is not None
            self.finish_reason = _REASONS.get(reason, "length")

    def complete_text(self) -> None:
        """It is over, and so is the text in which stop strings were looked for."""
        if self.output_text is None or self.finish_reason == "error" or isinstance(self.stop_reason, str):
            return
        try:
            self.output_text.flush()
        except Exception as error:
            self.finish_reason, self.error = "error", told(error)

    def text(self) -> str:
        """The output so far as text; empty without a tokenizer. Waits for the output thread."""
        return "" if self.stream is None else self.stream.whole()

    @property
    def output_error(self) -> str | None:
        """Why there is no text of an output, or nobody took it, though the engine may have gone on."""
        return None if self.stream is None else self.stream.error
