"""The app: an OpenAI-compatible API in front of a backend."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from blis_py.serve._completions import Completions
from blis_py.serve._params import check_text
from blis_py.serve._request_checks import LimitsMiddleware, RequestChecks
from blis_py.serve._schema import DetokenizeBody, TokenizeBody
from blis_py.serve.backend import Backend
from blis_py.serve.body import body_of
from blis_py.serve.chat import ChatTemplates
from blis_py.serve.errors import INTERNAL, ApiError, error_body
from blis_py.serve.settings import ServeSettings
from blis_py.version import __version__

log = logging.getLogger("blis.serve")
Handler = Callable[[Request, Any], Awaitable[Response]]


def make_app(backend: Backend, settings: ServeSettings | None = None) -> FastAPI:
    """The app of one backend, which is started and stopped by its owner.

    `app.state.checks` is its `RequestChecks`, `app.state.close()` ends what it has started.
    """
    settings = settings or ServeSettings()
    checks = RequestChecks(backend, settings)
    app = FastAPI(title="blis", version=__version__, docs_url=None, redoc_url=None)
    app.state.checks = checks
    completions = Completions(backend, settings, checks)
    app.state.close = completions.close
    app.include_router(completions.router())
    _add_models(app, backend)
    _add_tokens(app, backend, checks)
    _add_state(app, backend, checks)
    own = backend.router()
    if own is not None:
        app.include_router(own)
    _add_adapters(app)
    for kind, handler in _HANDLERS.items():
        app.add_exception_handler(kind, handler)
    app.add_middleware(LimitsMiddleware, settings=settings)
    return app


async def starting(scope: Scope, receive: Receive, send: Send) -> None:
    """App while the backend is starting: alive, and not ready."""
    if scope["type"] != "http":
        return
    alive = scope["path"] in ("/health", "/ping")
    error = ApiError(503, "the server is starting", retry_after_s=1)
    response = Response() if alive else _json(error.status, error.body, error.headers)
    await response(scope, receive, send)


def _add_models(app: FastAPI, backend: Backend) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """The served models."""
        return {"object": "list", "data": [_card(name, backend) for name in backend.models]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """One served model."""
        if name not in backend.models:
            raise ApiError(404, f"the model {name!r} does not exist", "model")
        return _card(name, backend)


def _card(name: str, backend: Backend) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "blis",
        "root": backend.models[0],
        "parent": None,
        "max_model_len": backend.max_model_len,
    }


def _add_tokens(app: FastAPI, backend: Backend, checks: RequestChecks) -> None:
    templates = ChatTemplates(backend, ServeSettings())

    @app.post("/tokenize")
    async def tokenize(request: Request) -> dict[str, Any]:
        """Token ids of a prompt or of a conversation."""
        body = await body_of(request, TokenizeBody)
        checks.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either prompt or messages", "prompt")
        text, special = body.prompt or "", body.add_special_tokens is not False
        if body.messages is not None:
            text = await templates.prompt(
                body.messages, add_generation_prompt=body.add_generation_prompt is not False
            )
            special = bool(body.add_special_tokens)
        check_text(text, backend, "prompt")
        ids = backend.encode(text, special)
        strings = [backend.token_text(token) for token in ids] if body.return_token_strs else None
        answer = {"count": len(ids), "max_model_len": backend.max_model_len, "tokens": ids}
        return {**answer, "token_strs": strings}

    @app.post("/detokenize")
    async def detokenize(request: Request) -> dict[str, Any]:
        """The text of token ids."""
        body = await body_of(request, DetokenizeBody)
        if len(body.tokens) > backend.max_model_len:
            raise ApiError(400, f"the context length is {backend.max_model_len} tokens", "tokens")
        checks.check_model(body.model)
        return {"prompt": backend.decode(body.tokens)}


def _add_state(app: FastAPI, backend: Backend, checks: RequestChecks) -> None:
    async def alive() -> Response:
        """Whether it can serve."""
        return Response(status_code=503 if backend.failure else 200)

    for path in ("/health", "/ping"):
        app.add_api_route(path, alive, methods=["GET"], response_model=None)

    @app.get("/health/ready", response_model=None)
    async def ready() -> Response:
        """Whether it serves: 503 while it is starting or stopping."""
        return Response(status_code=200 if checks.ready else 503)

    @app.get("/version")
    async def version() -> dict[str, str]:
        """The version of the server."""
        return {"version": __version__}

    @app.get("/load")
    async def load() -> dict[str, int]:
        """Requests in the server."""
        present = [one for one in backend.load() if not one.is_gone]
        return {"server_load": sum(one.running + one.waiting for one in present)}

    @app.get("/metrics", response_model=None)
    async def metrics() -> Response:
        """Metrics in Prometheus' text format."""
        return Response(checks.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/reset_prefix_cache", response_model=None)
    async def reset_prefix_cache() -> Response:
        """Forget cached prefixes."""
        if not backend.reset_prefix_cache():
            raise ApiError(501, "this server cannot reset its prefix cache")
        return Response(status_code=200)


def _add_adapters(app: FastAPI) -> None:
    async def adapters() -> Response:
        """LoRA adapters are not served."""
        raise ApiError(501, "LoRA adapters are not served")

    for name in ("load", "unload"):
        app.add_api_route(f"/v1/{name}_lora_adapter", adapters, methods=["POST"], response_model=None)


def _json(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(body, status_code=status, headers=headers)


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _json(error.status, error.body, error.headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    return _json(400, error_body(400, str(first["msg"]), where or None))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(error.status_code, error_body(error.status_code, str(error.detail)), error.headers)


async def _internal(request: Request, error: Exception) -> Response:
    log.error("%s %s has failed", request.method, request.url.path, exc_info=error)
    return _json(500, error_body(500, INTERNAL))


_HANDLERS: Mapping[Any, Handler] = {
    ApiError: _api_error,
    RequestValidationError: _invalid,
    HTTPException: _http_error,
    Exception: _internal,
}
