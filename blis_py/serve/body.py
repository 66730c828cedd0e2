"""Bodies of requests: parsed and checked in bounded time and memory, large ones off the event loop."""

from __future__ import annotations

import asyncio
import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from blis_py.errors import InputError, plain
from blis_py.files.json_files import parse_json
from blis_py.serve.errors import ApiError
from blis_py.serve.memory import return_freed

MOST_VALUES = 1 << 21
"""Most values of a body: about 200 MB while it is parsed."""
LARGE_BYTES = 1 << 16
"""Size from which work on a body is done off the event loop."""
_NUMBERS = re.compile(r"NaN|Infinity|[eE]\+?\d{3}")
"""Numbers that are none in JSON, or that are beyond a float."""
_T = TypeVar("_T", bound=BaseModel)
LARGE = ThreadPoolExecutor(1, "large requests")
"""One large body at a time."""


async def body_of(request: Request, kind: type[_T]) -> _T:
    """The body of a request.

    Raises:
        ApiError: 400: not JSON, or not of this kind; 415: another content type.
    """
    given = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if not (given == "application/json" or given.endswith("+json")):
        raise ApiError(415, "must be application/json", "Content-Type")
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise ApiError(499, "the client has gone") from None
    if len(raw) < LARGE_BYTES:
        return parsed(raw, kind)
    return await asyncio.get_running_loop().run_in_executor(LARGE, _large, raw, kind)


def _large(raw: bytes, kind: type[_T]) -> _T:
    try:
        return parsed(raw, kind)
    finally:
        return_freed(len(raw))


def parsed(raw: bytes, kind: type[_T]) -> _T:
    """The body of these bytes.

    Raises:
        ApiError: 400: not JSON, or not of this kind.
    """
    if sum(raw.count(sign) for sign in (b",", b"[", b"{")) > MOST_VALUES:
        raise ApiError(400, f"the body has more than {MOST_VALUES:,} values")
    try:
        text = raw.decode()
        value = parse_json(text)
        if _NUMBERS.search(text):
            json.dumps(value, allow_nan=False)
    except UnicodeDecodeError:
        raise ApiError(400, "the body is not UTF-8") from None
    except InputError as error:
        raise ApiError(400, f"the body is {error}") from None
    except ValueError:
        raise ApiError(400, "the body has a number that is not finite") from None
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        where = plain(".".join(map(str, first["loc"])))
        raise ApiError(400, str(first["msg"]).removeprefix("Value error, "), where or None) from None
