"""Bodies of requests. Fields that are not listed are accepted, and named once in the log."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

MOST_STOPS, MOST_CHOICES, MOST_MESSAGES, MOST_TOOLS = 64, 4096, 16_384, 1024
MOST_FORM_CHARACTERS = 1 << 18
"""Length of a schema, expression or grammar, which servers keep to compile it once."""
_LARGEST_ID = 2**31 - 1
Count = Annotated[int, Field(ge=0, le=_LARGEST_ID)]


def _token_ids(value: Any) -> Any:
    """A list of token ids, checked as a whole: a list of a million wrong ones has one error."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int}:
        raise ValueError("must be a list of token ids")
    if value and not (min(value) >= 0 and max(value) <= _LARGEST_ID):
        raise ValueError(f"token ids are from 0 to {_LARGEST_ID}")
    return value


def _prompt(value: Any) -> Any:
    """A text, token ids, or a list of either."""
    if isinstance(value, str):
        return value
    kinds = set(map(type, value)) if isinstance(value, list) else None
    if kinds is None or not (kinds <= {int} or kinds <= {str, list}):
        raise ValueError("must be a text, a list of token ids, or a list of these")
    for ids in value if list in kinds else ():
        if isinstance(ids, list):
            _token_ids(ids)
    return _token_ids(value) if int in kinds else value


def _form(value: Any) -> Any:
    """A form of the output, of bounded length."""
    if value is not None and len(json.dumps(value, ensure_ascii=False)) > MOST_FORM_CHARACTERS:
        raise ValueError(f"is longer than {MOST_FORM_CHARACTERS:,} characters")
    return value


OfForm = BeforeValidator(_form)
TokenIds = Annotated[Any, BeforeValidator(_token_ids)]
Prompt = Annotated[Any, BeforeValidator(_prompt)]
Stop = Annotated[str, Field(max_length=1024)]


Messages = Annotated[list[dict[str, Any]], Field(max_length=MOST_MESSAGES, fail_fast=True)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow")


class StreamOptions(_Body):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchema(_Body):
    name: str | None = None
    json_schema: dict[str, Any] | None = Field(default=None, alias="schema")


class ResponseFormat(_Body):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: Annotated[JsonSchema | None, OfForm] = None


class GenerationBody(_Body):
    """Fields that completions and chat have in common."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    min_tokens: Count | None = 0
    n: Annotated[int, Field(ge=1, le=10_000)] | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=MOST_CHOICES, fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = False
    ignore_eos: bool | None = False
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: Annotated[dict[str, Any] | None, OfForm] = None
    guided_json: Annotated[str | dict[str, Any] | None, OfForm] = None
    guided_regex: Annotated[str | None, OfForm] = None
    guided_choice: Annotated[Annotated[list[str], Field(max_length=MOST_CHOICES)] | None, OfForm] = None
    guided_grammar: Annotated[str | None, OfForm] = None
    user: str | None = None
    add_special_tokens: bool | None = None


class CompletionBody(GenerationBody):
    prompt: Prompt
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = False
    best_of: int | None = None
    suffix: str | None = None


class ChatBody(GenerationBody):
    messages: Annotated[Messages, Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: Any = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    echo: bool | None = False


class TokenizeBody(_Body):
    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = True
    return_token_strs: bool | None = False


class DetokenizeBody(_Body):
    model: str | None = None
    tokens: TokenIds
