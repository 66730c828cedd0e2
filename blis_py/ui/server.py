"""The local server: one page, its modules, and the jobs behind it; loopback only, behind a token."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
import sys
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.ui._lanes import SUPERSEDED, Lane
from blis_py.ui._plans import stream

HOST = "127.0.0.1"
_HEADER, _MAX_BODY = "x-blis-token", 1 << 20
_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
_PAGE = ("index.html", "page.css", "page.js", "controls.js", "history.js", "jobs.js", "panels.js", "plan.js")
_SHARED = ("style.css", "format.js", "scale.js", "chart.js", "bars.js", "table.js", "theme.js", "copy.js")
_LANE = {"start": "sample", "sample": "sample", "curve": "sample", "whole": "whole"}
"""Lane of each kind of job; all others, which follow a whole run, are in `details`: not all of them can be
cancelled at once, and the next run need not wait for them."""
_NICENESS = {"sample": 0, "whole": 5, "details": 10}
_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "frame-ancestors 'self' http://127.0.0.1:* http://localhost:*"
)
Next = Callable[[Request], Awaitable[Response]]


def app_of(base: RunConfig, token: str, folder: Path, host: str) -> FastAPI:
    """The application.

    Args:
        base: what the page starts with.
        token: that requests must have, in the link or in a header.
        folder: for derived files.
        host: `HOST:PORT` of the only origin.
    """
    lanes: dict[str, Lane] = {}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        lanes.update({name: Lane(base, folder, niceness) for name, niceness in _NICENESS.items()})
        yield
        for lane in lanes.values():
            lane.close()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.state.lanes = lanes

    @app.middleware("http")
    async def guarded(request: Request, go_on: Next) -> Response:
        if refusal := _refusal(request, token, host):
            return Response(refusal, 403, media_type="text/plain")
        response = await go_on(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["Referrer-Policy"] = "no-referrer"
        response.headers["Cache-Control"] = "no-store"
        return response

    @app.get("/")
    async def page() -> Response:
        return _file("index.html")

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        return _file(name)

    @app.post("/api/job")
    async def job(request: Request) -> Response:
        body = await _body(request)
        tab = str(body.get("tab", ""))[:64]
        kind = str(body.get("kind", ""))
        if kind == "leave":
            for lane in lanes.values():
                lane.leave(tab)
            return JSONResponse(SUPERSEDED)
        if kind == "sample":
            for lane in lanes.values():
                lane.move(tab, body.get("state"))
        lane = lanes[_LANE.get(kind, "details")]
        answer = await lane.do(tab, {**body, "kind": kind}, request.is_disconnected)
        return JSONResponse(answer, 200 if not answer.keys() & {"refused", "failed"} else 422)

    @app.post("/api/plan")
    async def plan(request: Request) -> Response:
        body = await _body(request)
        return StreamingResponse(
            stream(base, folder, body, request.is_disconnected), media_type="application/x-ndjson"
        )

    @app.exception_handler(InputError)
    async def refused(request: Request, error: Exception) -> Response:
        return JSONResponse({"refused": str(error)}, 422)

    return app


def _refusal(request: Request, token: str, host: str) -> str | None:
    """The reason why a request is refused; None if it is not."""
    names = {host, host.replace(HOST, "localhost")}
    if request.headers.get("host") not in names:
        return "this server answers on the loopback address alone"
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] not in names:
        return "the request comes from another page"
    if request.method == "GET" and request.url.path.startswith("/page/"):
        return None  # the program's own files
    given = request.headers.get(_HEADER) or request.query_params.get("token") or ""
    if not hmac.compare_digest(given.encode(), token.encode()):
        return "the link lacks its token: use the one that blis ui prints"
    return None


async def _body(request: Request) -> dict[str, Any]:
    body = await request.body()
    if len(body) > _MAX_BODY:
        raise InputError("is too large", key="request")
    try:
        value = json.loads(body)
    except ValueError:
        raise InputError("is no JSON", key="request") from None
    if not isinstance(value, dict):
        raise InputError("must be an object", key="request", value=value)
    return value


def _file(name: str) -> Response:
    """A file of the page; no other."""
    if name in _PAGE:
        place = files("blis_py.ui") / "page" / name
    elif name in _SHARED:
        place = files("blis_py.pages") / "assets" / name
    else:
        return Response("no such file", 404, media_type="text/plain")
    return Response(place.read_text(encoding="utf-8"), media_type=_KINDS[name.rpartition(".")[2]])


def serve(base: RunConfig, *, port: int = 0, browser: bool = True) -> None:
    """Serve the page until interrupted; its link is printed first.

    Args:
        port: 0 = any that is free.
        browser: open the link.

    Raises:
        InputError: the port is taken.
    """
    with TemporaryDirectory(prefix="blis-ui-") as folder, closing(_listening(port)) as listening:
        host, token = f"{HOST}:{listening.getsockname()[1]}", secrets.token_urlsafe(24)
        link = f"http://{host}/?token={token}"
        print(link, flush=True)
        print("the page is at this link until Ctrl-C", file=sys.stderr, flush=True)
        if browser:
            webbrowser.open(link)
        app = app_of(base, token, Path(folder), host)
        settings = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        uvicorn.Server(settings).run([listening])


def _listening(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)  # connections queue until the server has started
    except OSError as error:
        listener.close()
        raise InputError(f"cannot be used: {error.strerror}", key="--port", value=port) from None
    return listener
