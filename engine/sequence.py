"""A request with its tokens: engine state beyond the scheduler's `Request`."""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from itertools import count

import numpy as np
from numpy.typing import NDArray

from blis_py.core.request import FinishReason, Request
from engine.grammar.state import Grammar
from engine.models.tokenizer import Tokenizer
from engine.output_stream import OutputStream, error_line
from engine.output_text import OutputText
from engine.sampling_params import SamplingParams

NO_SLOT = -1
_serials = count()

_REASONS = {FinishReason.TIMEOUT: "timeout", FinishReason.ABORT: "abort"}

TokenLogprobs = dict[int, float]
"""Log-probability by token id, of one emitted token and of the most likely alternatives."""


class Roster(list[Request]):
    """The decoding requests of a step, in running order.

    Immutable. Engine, executor and step log keep it from step to step and recognise an unchanged set by `is`;
    a different object may, but need not, list other requests.
    """


class Sequence:
    """One request in the engine.

    Args:
        index: running number, also `request.row`.
        request: the scheduler's view; it owns status and block table.
        seed: of its random numbers.
        stop_ids: tokens that end it.
        grammar: grammar of its output, if constrained.
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
        "seed",
        "serial",
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
        self.serial = next(_serials)
        """A number that no other sequence of this process has."""
        self.stop_ids = stop_ids
        self.output_text: OutputText | None = None
        """The text, if the engine itself decodes it to search for stop strings."""
        if params.stop_strings and tokenizer is not None:
            include = params.include_stop_str_in_output
            self.output_text = OutputText(tokenizer, params.stop_strings, include)
        self.stream: OutputStream | None = None
        """The output stream, if text or deltas are delivered."""
        self.grammar = grammar
        self.watched = bool(params.stop_strings) or grammar is not None
        """Whether every token has to be checked."""
        self.slot = NO_SLOT
        """Row in the per-slot arrays while it runs."""
        self.table_changed = False
        """Whether its block table may differ from that row."""
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
        emitted = np.array(self.output_ids[max(start - len(prompt), 0) : end - len(prompt)], dtype=np.int64)
        return emitted if start >= len(prompt) else np.concatenate((prompt[start:], emitted))

    def computed(self, start: int) -> list[int]:
        """Tokens from position `start` on whose keys and values are in the cache: all but the last."""
        emitted = self.output_ids[max(start - len(self.prompt_ids), 0) : -1]
        return [*self.prompt_ids[start:].tolist(), *emitted]

    def stops_at(self, token: int) -> bool:
        """Whether `token`, the latest one, ends the sequence; records the reason.

        Updates the text if stop strings are searched for, and advances a grammar by the token. A token that
        the grammar does not allow, or -1, fails the sequence and is discarded.
        """
        grammar = self.grammar
        if token < 0 and grammar is None:
            self._discard_latest()
            self.finish_reason, self.error = "error", "no token: the model's logits are not numbers"
            return True
        if grammar is None:
            return self._check_stop(token)
        if not grammar.accept(token):
            self._discard_latest()
            self.finish_reason, self.error = "error", grammar.stuck()
        elif not self._check_stop(token) and grammar.complete and not grammar.holding_back:
            self.finish_reason = "stop"
        return self.finish_reason is not None

    def _discard_latest(self) -> None:
        self.output_ids.pop()
        if self.params.logprobs is not None:
            self.logprobs.pop()

    def _check_stop(self, token: int) -> bool:
        """Whether a stop token or stop string ends the sequence."""
        late_enough = len(self.output_ids) > self.params.min_tokens
        if token in self.stop_ids and late_enough:
            self.finish_reason = "stop"
            self.stop_reason = token if token in self.params.stop_token_ids else None
        elif self.output_text is not None:
            try:
                stopped = self.output_text.append_and_stop(token, look=late_enough)
            except Exception as error:  # in the tokenizer: whether the output ends is unknown
                self.finish_reason, self.error = "error", error_line(error)
            else:
                if stopped is not None:
                    self.finish_reason, self.stop_reason = "stop", stopped
        return self.finish_reason is not None

    def finished(self, now_ns: int) -> None:
        """Note the release by the scheduler."""
        self.finish_ns = now_ns
        if self.finish_reason is None:
            reason = self.request.finish_reason
            assert reason is not None
            self.finish_reason = _REASONS.get(reason, "length")

    def complete_text(self) -> None:
        """Complete the text in which stop strings were searched for."""
        if self.output_text is None or self.finish_reason == "error" or isinstance(self.stop_reason, str):
            return
        try:
            self.output_text.flush()
        except Exception as error:
            self.finish_reason, self.error = "error", error_line(error)

    def text(self) -> str:
        """The output so far as text; empty without a tokenizer. Waits for the output thread."""
        return "" if self.stream is None else self.stream.whole()

    @property
    def output_error(self) -> str | None:
        """The error that ended text delivery, though the engine may have continued."""
        return None if self.stream is None else self.stream.error
