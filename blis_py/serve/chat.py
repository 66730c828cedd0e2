"""Chat templates: messages to a prompt, with Jinja in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blis_py.serve.errors import ApiError

PLAIN_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""For a checkpoint without a template."""
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@lru_cache(maxsize=64)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refused
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refused(message: str) -> None:
    raise TemplateError(message)


def chat_prompt(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Render messages.

    Raises:
        ApiError: messages or template that cannot be rendered.
    """
    lines = [_message(number, message) for number, message in enumerate(messages)]
    try:
        return _compiled(template).render(
            **{
                "messages": lines,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt,
                **(variables or {}),
            }
        )
    except Exception as error:  # templates raise whatever their expressions do
        raise ApiError(400, f"the chat template cannot render these messages: {error}", "messages") from error


def _message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its content as one text."""
    where = f"messages[{number}]"
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise ApiError(400, f"must be one of {', '.join(_ROLES)}", f"{where}.role")
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if content is not None and not isinstance(content, str):
        raise ApiError(400, "must be a text, or a list of parts", f"{where}.content")
    return {**message, "content": content}


def _part(where: str, part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    if not isinstance(text, str):
        raise ApiError(400, "only parts of type text are served", f"{where}.content")
    return text
