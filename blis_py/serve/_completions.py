"""`/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from blis_py.errors import plain
from blis_py.serve._generation import DeliveredPiece, Generation
from blis_py.serve._params import check_size, check_text, max_tokens_of, refuse_unserved, sampling
from blis_py.serve._request_checks import RequestChecks
from blis_py.serve._schema import ChatBody, CompletionBody, GenerationBody
from blis_py.serve._sse import DONE, Disconnected, Events, EventStream, Write, unless_disconnected
from blis_py.serve._wording import ChatWording, Usage, Wording
from blis_py.serve.backend import Backend, Sampling, Submission
from blis_py.serve.body import LARGE_BYTES, body_of
from blis_py.serve.chat import ChatTemplates
from blis_py.serve.errors import INTERNAL, ApiError, error_body
from blis_py.serve.settings import ServeSettings

log = logging.getLogger("blis.serve")
Prompts = list[list[int]]
_MAX_NAMES = 100


class Completions:
    """Both endpoints in front of one backend."""

    def __init__(self, backend: Backend, settings: ServeSettings, checks: RequestChecks) -> None:
        self._backend, self._settings, self._checks = backend, settings, checks
        self._templates = ChatTemplates(backend, settings)
        self._unknown: set[str] = set()
        """Fields without effect that have been named in the log."""

    def router(self) -> APIRouter:
        router = APIRouter(tags=["OpenAI"])
        router.add_api_route("/v1/completions", self.completions, methods=["POST"], response_model=None)
        router.add_api_route("/v1/chat/completions", self.chat, methods=["POST"], response_model=None)
        return router

    def close(self) -> None:
        """End the process of requests' templates."""
        self._templates.close()

    async def completions(self, request: Request) -> Response:
        """Complete one prompt or several.

        Raises:
            ApiError: 400: a parameter is not served, or does not fit.
        """
        body = await body_of(request, CompletionBody)
        self._checks.check_model(body.model)
        refuse_unserved(body)
        if body.suffix:
            raise ApiError(400, "is not served", "suffix")
        if body.best_of not in (None, 1, body.n):
            raise ApiError(400, "must equal n", "best_of")
        prompts = await self._prompts(body)
        echoes = self._texts(body) if body.echo else []
        wording = Wording(_id("cmpl", request), int(time.time()), self._name(body), echoes)
        return await self._respond(body, prompts, request, wording)

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        body = await body_of(request, ChatBody)
        self._checks.check_model(body.model)
        refuse_unserved(body)
        text = await self._templates.prompt(
            body.messages,
            template=body.chat_template,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt is not False and not body.continue_final_message,
            variables=body.chat_template_kwargs or {},
        )
        ids = await self._encoded(text, bool(body.add_special_tokens), "messages")
        echoes = [str(body.messages[-1].get("content") or "")] * (body.n or 1) if body.echo else []
        wording = ChatWording(_id("chatcmpl", request), int(time.time()), self._name(body), echoes)
        return await self._respond(body, [ids], request, wording)

    async def _respond(
        self, body: GenerationBody, prompts: Prompts, request: Request, wording: Wording
    ) -> Response:
        generation = self._begin(body, prompts, request, wording.id)
        if body.stream:
            events = self._events(body, generation, wording, len(prompts))
            return EventStream(events, _headers(generation, wording), generation.close)
        try:
            choices = await unless_disconnected(request.receive, generation.result())
        except Disconnected:
            return Response(status_code=499)
        finally:
            generation.close()
        used = Usage(choices, len(prompts)).body(generation.completion_tokens)
        return JSONResponse(wording.whole(choices, used), headers=_headers(generation, wording))

    def _begin(self, body: GenerationBody, prompts: Prompts, request: Request, name: str) -> Generation:
        """Hand the sequences of a request to the backend."""
        each = body.n or 1
        if len(prompts) * each > self._settings.max_choices:
            problem = f"asks for {len(prompts) * each} sequences, more than {self._settings.max_choices}"
            raise ApiError(400, problem, "n")
        limit = max_tokens_of(body, self._settings.default_max_tokens)
        check_size(body, [len(prompt) for prompt in prompts], limit)
        self._checks.check_queue()
        self._name_unknown(body)
        headers = {name.lower(): value for name, value in request.headers.items()}
        submissions = []
        for number, prompt in enumerate(prompts):
            params = sampling(body, self._backend, len(prompt), limit)
            for choice in range(each):
                own = name if len(prompts) * each == 1 else f"{name}-{number * each + choice}"
                submissions.append(
                    Submission(
                        id=own,
                        prompt_ids=prompt,
                        sampling=_of_choice(params, choice),
                        model=self._name(body),
                        priority=body.priority,
                        headers=headers,
                    )
                )
        return Generation(self._backend, submissions, self._checks.metrics)

    def _name_unknown(self, body: GenerationBody) -> None:
        """Log fields that have no effect here, each once."""
        for name in (body.model_extra or {}).keys() - self._unknown:
            if len(self._unknown) < _MAX_NAMES:
                self._unknown.add(name)
                log.warning("requests have a field that has no effect here: %s", plain(name))

    def _events(self, body: GenerationBody, generation: Generation, wording: Wording, prompts: int) -> Events:
        options = body.stream_options
        always = bool(options and options.continuous_usage_stats)
        at_end = bool(options and options.include_usage)
        fixed = ',"usage":null' if at_end and not always else ""
        usage = Usage(generation.choices, prompts)

        def used(count: int) -> str:
            return f',"usage":{usage.text(count)}' if always else fixed

        def chunks_of(together: list[DeliveredPiece]) -> str:
            return "".join(
                wording.chunks(choice, piece, used(count))
                for choice, piece, count in together
                if piece.finish_reason not in ("error", "timeout")
            )

        async def events(write: Write) -> None:
            try:
                await generation.follow(lambda together: write(chunks_of(together).encode()))
                end = wording.last(usage.text(generation.completion_tokens)) if at_end else ""
            except ApiError as error:
                end = f"data: {json.dumps(error.body)}\n\n"
            except Exception:
                log.exception("a stream has failed")
                end = f"data: {json.dumps(error_body(500, INTERNAL))}\n\n"
            write(end.encode() + DONE)

        return events

    def _name(self, body: GenerationBody) -> str:
        return body.model or self._backend.models[0]

    async def _prompts(self, body: CompletionBody) -> Prompts:
        given, special = body.prompt, body.add_special_tokens is not False
        if isinstance(given, str):
            return [await self._encoded(given, special, "prompt")]
        if not given:
            raise ApiError(400, "must not be empty", "prompt")
        if isinstance(given[0], int):
            return [given]
        if len(given) > self._settings.max_choices:
            problem = f"has {len(given):,} prompts, more than {self._settings.max_choices}"
            raise ApiError(400, problem, "prompt")
        return [
            one if isinstance(one, list) else await self._encoded(one, special, "prompt") for one in given
        ]

    async def _encoded(self, text: str, special: bool, name: str) -> list[int]:
        """Token ids of a text; other requests get a turn after each."""
        check_text(text, self._backend, name)
        ids = self._backend.encode(text, special)
        if len(text) > LARGE_BYTES:
            await asyncio.sleep(0)
        return ids

    def _texts(self, body: CompletionBody) -> Sequence[str]:
        """The text of the prompt of each choice."""
        given: Any = [body.prompt] if isinstance(body.prompt, str) else body.prompt
        if given and isinstance(given[0], int):
            given = [given]
        texts = [one if isinstance(one, str) else self._backend.decode(one) for one in given]
        return [text for text in texts for _ in range(body.n or 1)]


def _id(kind: str, request: Request) -> str:
    """The id of a response: the client's own, if it gives one."""
    given = request.headers.get("x-request-id", "")
    own = given if given.isascii() and given.isprintable() and 0 < len(given) <= 200 else uuid.uuid4().hex
    return f"{kind}-{own}"


def _of_choice(params: Sampling, choice: int) -> Sampling:
    """The parameters of one of several choices: each has a seed of its own."""
    return params if not choice or params.seed is None else replace(params, seed=params.seed + choice)


def _headers(generation: Generation, wording: Wording) -> dict[str, str]:
    """The request's id, and the instance that serves it if that is known by now."""
    headers = {"X-Request-Id": wording.id.partition("-")[2]}
    return headers | ({"x-inference-pod": generation.pod} if generation.pod else {})
