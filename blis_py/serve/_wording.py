"""Bodies and chunks of responses: completions and chat, whole or as a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from blis_py.serve._generation import SequenceChoice
from blis_py.serve.backend import Piece, TokenLogprob


class Usage:
    """Token counts of a request.

    Args:
        prompts: its prompts; each has the same number of choices.
    """

    def __init__(self, choices: Sequence[SequenceChoice], prompts: int) -> None:
        self._firsts = choices[:: max(len(choices) // prompts, 1)]
        self._prompt_tokens = sum(len(choice.submission.prompt_ids) for choice in self._firsts)

    def body(self, completion: int) -> dict[str, Any]:
        """The counts, with so many completion tokens so far."""
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self._prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
        }

    def text(self, completion: int) -> str:
        """The same as JSON."""
        prompt_tokens, cached = self._prompt_tokens, self._cached
        return (
            f'{{"prompt_tokens":{prompt_tokens},"completion_tokens":{completion},'
            f'"total_tokens":{prompt_tokens + completion},'
            f'"prompt_tokens_details":{{"cached_tokens":{cached}}}}}'
        )

    @property
    def _cached(self) -> int:
        firsts = self._firsts
        return firsts[0].cached_tokens if len(firsts) == 1 else sum(one.cached_tokens for one in firsts)


class Wording:
    """Wire format of one endpoint.

    Args:
        id, created, model: of the response.
        prefixes: text before each choice's own, for `echo`.
    """

    whole_kind = chunk_kind = "text_completion"

    def __init__(self, id: str, created: int, model: str, prefixes: Sequence[str] = ()) -> None:
        self.id, self.created, self.model, self.prefixes = id, created, model, prefixes
        head = {"id": id, "object": self.chunk_kind, "created": created, "model": model}
        self._head = "data: " + json.dumps(head)[:-1]
        self._begun: set[int] = set()
        self._offsets: dict[int, int] = {}
        """Characters of each choice's tokens so far."""

    def whole(self, choices: Sequence[SequenceChoice], used: dict[str, Any]) -> dict[str, Any]:
        """The body of a response that is no stream."""
        return {
            "id": self.id,
            "object": self.whole_kind,
            "created": self.created,
            "model": self.model,
            "choices": [self._whole(choice) for choice in choices],
            "usage": used,
        }

    def chunks(self, choice: SequenceChoice, piece: Piece, used: str) -> str:
        """The events of one piece.

        Args:
            used: the member `usage` of each, with a comma before it; or nothing.
        """
        begin = "" if choice.index in self._begun else self._beginning(choice, used)
        self._begun.add(choice.index)
        logprobs = (
            "null" if piece.logprobs is None else json.dumps(self._logprobs(choice.index, piece.logprobs))
        )
        finish = "null" if piece.finish_reason is None else f'"{piece.finish_reason}"'
        stop = "" if piece.finish_reason is None else f',"stop_reason":{json.dumps(piece.stop_reason)}'
        return (
            f'{begin}{self._head},"choices":[{{"index":{choice.index},{self._delta(piece.text)},'
            f'"logprobs":{logprobs},"finish_reason":{finish}{stop}}}]{used}}}\n\n'
        )

    def last(self, used: str) -> str:
        """The event with the usage, behind all others."""
        return f'{self._head},"choices":[],"usage":{used}}}\n\n'

    def _whole(self, choice: SequenceChoice) -> dict[str, Any]:
        wanted = choice.submission.sampling.logprobs is not None
        logprobs = self._logprobs(choice.index, choice.logprobs) if wanted else None
        return {
            "index": choice.index,
            "text": self._prefix(choice) + choice.text,
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _beginning(self, choice: SequenceChoice, used: str) -> str:
        prefix = self._prefix(choice)
        if not prefix:
            return ""
        return self.chunk_of(choice.index, self._delta(prefix), used)

    def _prefix(self, choice: SequenceChoice) -> str:
        return self.prefixes[choice.index] if self.prefixes else ""

    def chunk_of(self, index: int, delta: str, used: str) -> str:
        """An event without an end."""
        return (
            f'{self._head},"choices":[{{"index":{index},{delta},"logprobs":null,"finish_reason":null}}]'
            f"{used}}}\n\n"
        )

    def _delta(self, text: str) -> str:
        return f'"text":{quoted(text)}'

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        offsets = list(accumulate((len(one.token) for one in tokens), initial=self._offsets.get(index, 0)))
        self._offsets[index] = offsets.pop()
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [dict(token.top) for token in tokens],
            "text_offset": offsets,
        }


class ChatWording(Wording):
    """Chat completions: the first event of each choice names the role, and is no token."""

    whole_kind, chunk_kind = "chat.completion", "chat.completion.chunk"

    def _whole(self, choice: SequenceChoice) -> dict[str, Any]:
        wanted = choice.submission.sampling.logprobs is not None
        logprobs = self._logprobs(choice.index, choice.logprobs) if wanted else None
        text = self._prefix(choice) + choice.text
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": text, "tool_calls": []},
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }

    def _beginning(self, choice: SequenceChoice, used: str) -> str:
        first = self.chunk_of(choice.index, '"delta":{"role":"assistant","content":""}', used)
        return first + super()._beginning(choice, used)

    def _delta(self, text: str) -> str:
        return f'"delta":{{"content":{quoted(text)}}}'

    def _logprobs(self, index: int, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": [self._token(token) for token in tokens]}

    def _token(self, token: TokenLogprob) -> dict[str, Any]:
        top = [_entry(text, logprob) for text, logprob in token.top]
        return {**_entry(token.token, token.logprob), "top_logprobs": top}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
