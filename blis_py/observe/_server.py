"""Properties of a server: model, counts, round-trip time, metrics."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from statistics import median
from typing import Any

from blis_py.errors import InputError, plain
from blis_py.observe.http import HttpClient, HttpError, Whole
from blis_py.observe.prompts import Counting
from blis_py.traces.prometheus import SCRAPED

_PINGS = 7
_WORDS = (40, 240)


async def fetch(client: HttpClient, method: str, path: str, body: dict[str, Any] | None = None) -> Whole:
    """A small response.

    Raises:
        HttpError: none came.
    """
    data = b"" if body is None else json.dumps(body).encode()
    whole = Whole()
    await client.send(client.target.request(method, path, data), whole)
    return whole


async def model_of(client: HttpClient, name: str | None) -> str:
    """The model to name in requests.

    Raises:
        InputError: the server cannot be reached, or serves no such model.
    """
    try:
        got = await fetch(client, "GET", "/v1/models")
        names = [str(one["id"]) for one in json.loads(got.body)["data"]]
    except HttpError as error:
        raise InputError(str(error), key="--server-url", fix="start the server first") from None
    except (ValueError, KeyError, TypeError):
        body = plain(got.body[:200].decode(errors="replace"))
        problem = f"status {got.status} of /v1/models: {body}"
        if name is not None and got.status == 404:
            return name
        raise InputError(problem, key="--server-url", fix="name a server of the OpenAI API") from None
    if name is not None:
        return name
    if not names:
        raise InputError("the server serves no model", key="--model", fix="name one")
    return names[0]


async def rtt_ms(client: HttpClient) -> float:
    """Round-trip time: the median of some GET /health on an open connection."""
    times = []
    for _ in range(_PINGS):
        begin = time.perf_counter()
        await fetch(client, "GET", "/health")
        times.append((time.perf_counter() - begin) * 1e3)
    return median(times)


async def counting(client: HttpClient, model: str, chat: bool, words: Any) -> Counting:
    """The server's count of tokens for prompts of words, from two answers of one token each.

    Args:
        words: makes the text of so many words.

    Raises:
        InputError: it does not answer.
    """
    tokens = []
    for count in _WORDS:
        body: dict[str, Any] = {"model": model, "max_tokens": 1}
        body |= (
            {"messages": [{"role": "user", "content": words(count)}]} if chat else {"prompt": words(count)}
        )
        path = "/v1/chat/completions" if chat else "/v1/completions"
        try:
            got = await fetch(client, "POST", path, body)
            tokens.append(int(json.loads(got.body)["usage"]["prompt_tokens"]))
        except (HttpError, ValueError, KeyError, TypeError) as error:
            text = plain(got.body[:200].decode(errors="replace")) if "got" in locals() else str(error)
            problem = f"the server does not answer a first request: {text}"
            raise InputError(problem, key="--server-url") from None
    return Counting.of(_WORDS, (tokens[0], tokens[1]))


async def scrape(client: HttpClient, path: str, file: Path, every_s: float) -> None:
    """Append the metrics to a file, again and again, until cancelled."""
    with file.open("a", encoding="utf-8") as to:
        while True:
            try:
                got = await fetch(client, "GET", path)
            except HttpError:
                got = Whole()
            if got.status == 200:
                to.write(f"{SCRAPED}{time.time():.3f}\n{got.body.decode(errors='replace')}\n")
                to.flush()
            await asyncio.sleep(every_s)
