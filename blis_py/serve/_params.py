"""Arguments of a backend from the body of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blis_py.serve._schema import ChatBody, CompletionBody, GenerationBody, ResponseFormat
from blis_py.serve.backend import Backend, Sampling
from blis_py.serve.errors import ApiError

_OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Parameters whose default is the checkpoint's, or the engine's."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "logit_bias": ({},),
    "prompt_logprobs": (0, False),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "truncate_prompt_tokens": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "prompt_embeds": (),
    "kv_transfer_params": ({},),
    "vllm_xargs": ({},),
    "thinking_token_budget": (),
    "documents": ([],),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "tool_choice": ("none", "auto"),
    "modalities": (["text"], []),
    "audio": (),
    "web_search_options": (),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "repetition_detection": (),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
}
"""Fields that would change the answer and are not served, with the values under which they do not."""
MOST_TOKENS = 1 << 22
"""Most tokens of a request of several sequences, and most log-probabilities of one."""
COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for completions."""


def refuse_unserved(body: GenerationBody) -> None:
    """
    Raises:
        ApiError: a field asks for what is not served.
    """
    extra = body.model_extra or {}
    for name, neutral in _NEUTRAL.items():
        value = extra.get(name, getattr(body, name, None))
        if value is not None and not any(_same(value, one) for one in neutral):
            raise ApiError(400, "is not served", name)
    logprobs = getattr(body, "logprobs", None)
    if getattr(body, "echo", False) and logprobs is not None and logprobs is not False:
        raise ApiError(400, "is not served with echo: prompts have no log-probabilities", "logprobs")


def _same(value: Any, other: Any) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def check_size(body: GenerationBody, prompt_tokens: Sequence[int], limit: int | None) -> None:
    """
    Args:
        prompt_tokens: lengths of its prompts.
        limit: of each output; None = unlimited.

    Raises:
        ApiError: its sequences have more tokens together than a request may have.
    """
    each = body.n or 1
    if len(prompt_tokens) * each > 1:
        tokens = each * (sum(prompt_tokens) + len(prompt_tokens) * (limit or 0))
        if tokens > MOST_TOKENS:
            raise ApiError(400, f"asks for {tokens:,} tokens, more than {MOST_TOKENS:,}", "n")
    logprobs = _logprobs(body)
    if logprobs is not None:
        rows = len(prompt_tokens) * each * (limit or 0) * (1 + logprobs)
        if rows > MOST_TOKENS:
            raise ApiError(400, f"asks for {rows:,} log-probabilities, more than {MOST_TOKENS:,}", "logprobs")


def check_text(text: str, backend: Backend, name: str) -> None:
    """
    Raises:
        ApiError: a text that has too many tokens even if each of them were the longest of the vocabulary.
    """
    if len(text) > backend.longest_token * backend.max_model_len:
        limit = f"the context length is {backend.max_model_len} tokens"
        raise ApiError(400, f"{limit}, which {len(text):,} characters exceed", name)


def sampling(body: GenerationBody, backend: Backend, prompt_tokens: int, max_tokens: int | None) -> Sampling:
    """The parameters of one sequence.

    Raises:
        ApiError: the prompt leaves no room, or parameters contradict.
    """
    room = backend.max_model_len - prompt_tokens
    if prompt_tokens < 1:
        raise ApiError(400, "must not be empty", "prompt")
    if room < 1 or (max_tokens is not None and max_tokens > room):
        outputs = "" if max_tokens is None else f" and {max_tokens} output tokens"
        problem = f"the context length is {backend.max_model_len} tokens, but the request has {prompt_tokens}"
        raise ApiError(400, f"{problem} prompt tokens{outputs}", "max_tokens" if room >= 1 else "prompt")
    if max_tokens == 0:
        raise ApiError(400, "must be at least 1", "max_tokens")
    limit = room if max_tokens is None else max_tokens
    if (body.min_tokens or 0) > limit:
        raise ApiError(400, f"is more than the {limit} output tokens at most", "min_tokens")
    given = {name: getattr(body, name) for name in _OPTIONAL}
    given = {name: backend.defaults.get(name) if value is None else value for name, value in given.items()}
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if not all(stop):
        raise ApiError(400, "must not hold an empty text", "stop")
    return Sampling(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        stop=stop,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
        ignore_eos=bool(body.ignore_eos),
        logprobs=_logprobs(body),
        structured_outputs=_form(body),
        **given,
    )


def max_tokens_of(body: GenerationBody, default: int | None) -> int | None:
    """The limit that a body sets, or that its kind of request has without one."""
    if isinstance(body, ChatBody):
        given = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        return default if given is None else given
    return COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens


def _logprobs(body: GenerationBody) -> int | None:
    if isinstance(body, CompletionBody):
        return body.logprobs
    assert isinstance(body, ChatBody)
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "needs logprobs: true", "top_logprobs")
    return (body.top_logprobs or 0) if body.logprobs else None


def _form(body: GenerationBody) -> Mapping[str, Any] | None:
    """The structured output that a body asks for, under any of its names."""
    old = {name: getattr(body, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
    forms = {name: value for name, value in old.items() if value is not None}
    forms |= {k: v for k, v in (body.structured_outputs or {}).items() if v is not None}
    if body.response_format is not None:
        forms |= _response_format(body.response_format)
    if len(forms) > 1:
        raise ApiError(400, f"several forms are given: {', '.join(sorted(forms))}", "response_format")
    unknown = forms.keys() - {"json", "regex", "choice", "grammar", "json_object"}
    if unknown:
        raise ApiError(400, f"unknown form {min(unknown)}", "structured_outputs")
    return forms or None


def _response_format(form: ResponseFormat) -> dict[str, Any]:
    if form.type == "text":
        return {}
    if form.type == "json_object":
        return {"json_object": True}
    if form.type == "structural_tag":
        raise ApiError(400, "structural_tag is not served", "response_format.type")
    if form.json_schema is None or form.json_schema.json_schema is None:
        raise ApiError(400, "needs json_schema.schema", "response_format")
    return {"json": form.json_schema.json_schema}
