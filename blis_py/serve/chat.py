"""Chat templates: messages to a prompt, with Jinja in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from blis_py.errors import plain
from blis_py.serve.backend import Backend
from blis_py.serve.errors import ApiError
from blis_py.serve.killable import Killable, LimitExceeded
from blis_py.serve.settings import ServeSettings

PLAIN_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""For a checkpoint without a template."""
_RESERVED = {"messages", "tools", "add_generation_prompt", "chat_template"}
_RENDER_S, _RENDER_MIB = 2.0, 256
"""Limits of a request's template: CPU time and memory."""
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


class ChatTemplates:
    """Rendering of conversations: with the server's template, or with a request's own in a bounded process.

    A template is a program. Those of requests are rendered only if the server's settings trust them.
    """

    def __init__(self, backend: Backend, settings: ServeSettings) -> None:
        self._backend, self._trusts = backend, settings.trust_chat_template
        self._foreign: Killable | None = None

    async def prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation.

        Args:
            template: of the request; None = the server's.
            variables: of the request, beside the special tokens.

        Raises:
            ApiError: messages or template that cannot be rendered, or a template that is not trusted.
        """
        given = dict(variables or {})
        for name in _RESERVED & given.keys():
            raise ApiError(400, f"must not set {name}", "chat_template_kwargs")
        own = {
            "messages": [_message(number, message) for number, message in enumerate(messages)],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
        }
        everything = {**self._backend.template_variables, **given, **own}
        if template is None:
            return rendered(self._backend.chat_template, everything)
        if not self._trusts:
            fix = "start the server with --trust-request-chat-template to render it"
            raise ApiError(400, f"a template of a request is not trusted: {fix}", "chat_template")
        self._foreign = self._foreign or Killable(renderer, cpu_s=_RENDER_S, memory_mib=_RENDER_MIB)
        try:
            return str(await self._foreign.call(template, everything, self._most_characters))
        except LimitExceeded as error:
            raise ApiError(400, f"the template {error}", "chat_template") from None

    @property
    def _most_characters(self) -> int:
        return self._backend.longest_token * self._backend.max_model_len

    def close(self) -> None:
        if self._foreign is not None:
            self._foreign.close()


def renderer() -> Callable[[str, Mapping[str, Any], int], str]:
    """The function of the bounded process."""
    return _bounded


def _bounded(template: str, variables: Mapping[str, Any], most: int) -> str:
    text = rendered(template, variables)
    if len(text) > most:
        raise ApiError(400, f"makes a prompt of more than {most:,} characters", "chat_template")
    return text


def rendered(template: str, variables: Mapping[str, Any]) -> str:
    """
    Raises:
        ApiError: a template that cannot be rendered.
    """
    try:
        return _compiled(template).render(**variables)
    except MemoryError:
        raise
    except Exception as error:  # templates raise whatever their expressions do
        problem = f"the chat template cannot render these messages: {plain(str(error))}"
        raise ApiError(400, problem, "messages") from None


def _message(number: int, message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its content as one text."""
    where = f"messages[{number}]"
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
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
