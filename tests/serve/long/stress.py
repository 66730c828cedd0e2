"""Streams by the hundreds, aborts, bad clients, and the end of a server under load.

    python tests/serve/long/stress.py                # all, two minutes
    python tests/serve/long/stress.py engine fleet   # some

Every check is bounded in time and number, and all traffic stays on the loopback interface.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))

from servers import ENGINE, FLEET, Server, run, scratch, serving

from blis_py.observe.answer import ObservedAnswer
from blis_py.observe.http import HttpClient, HttpError, Target

_PATTERN = (
    " the queue drains in order and every batch is formed from what waits"
    " while blocks are freed as soon as an answer ends"
) * 60


class Counted(ObservedAnswer):
    """Also checks that the count of tokens grows by one, which an event lost, doubled or swapped breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def _usage(self, usage: object) -> None:
        super()._usage(usage)
        if isinstance(usage, dict):
            self.counts.append(int(usage["completion_tokens"]))

    @property
    def in_order(self) -> bool:
        return all(
            0 <= later - early <= 1 for early, later in zip([0, *self.counts], self.counts, strict=False)
        )


async def _stream(client: HttpClient, body: dict[str, object], cut_s: float | None) -> Counted | None:
    """One stream; None if it was cut on purpose."""
    answer = Counted()
    options = {"include_usage": True, "continuous_usage_stats": True}
    data = json.dumps({**body, "stream": True, "stream_options": options}).encode()
    try:
        async with asyncio.timeout(cut_s or 300):
            await client.send(client.target.request("POST", "/v1/completions", data), answer)
    except TimeoutError:
        if cut_s is None:
            raise
        return None
    answer.ended(0)
    return answer


async def keep_streaming(
    url: str, number: int, tokens: int, seconds: float, cut: float, ramp_s: float = 0.0
) -> dict[str, float]:
    """So many streams at any time, for so long; a share of them is cut. They begin within the ramp."""
    client, rng = HttpClient(Target.of(url, {})), random.Random(1)
    until, found = time.monotonic() + seconds, {"whole": 0, "cut": 0, "tokens": 0}

    async def worker(index: int) -> None:
        await asyncio.sleep(ramp_s * index / number)
        while time.monotonic() < until:
            cut_s = rng.uniform(0.2, 2.0) if rng.random() < cut else None
            body = {"prompt": f"S:{index % 7}", "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
            answer = await _stream(client, body, cut_s)
            if answer is None:
                found["cut"] += 1
                continue
            assert answer.end == ("ok", "", "length"), answer.end
            assert answer.completion_tokens == tokens, answer.completion_tokens
            assert answer.in_order, answer.counts
            found["whole"] += 1
            found["tokens"] += tokens

    begin = time.monotonic()
    await asyncio.gather(*map(worker, range(number)))
    client.close()
    return {**found, "seconds": round(time.monotonic() - begin, 1)}


def _empty(server: Server) -> None:
    """Nothing is left in a server."""
    for _ in range(100):
        if not server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting"):
            break
        time.sleep(0.1)
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def engine(seconds: float = 60) -> None:
    """200 streams on the tiny model, a tenth of them cut, preemption among them; memory stays flat."""
    with serving(*ENGINE, "--num-kv-blocks", "600", "--max-num-seqs", "128") as server:
        run(keep_streaming(server.url, 200, 100, 10, 0.1))
        before = server.rss_mb
        found = run(keep_streaming(server.url, 200, 100, seconds, 0.1))
        _empty(server)
        preempted = server.metric("vllm:num_preemptions_total")
        print("engine", found, f"{preempted:.0f} preemptions, RSS {before:.0f} -> {server.rss_mb:.0f} MB")
        assert found["whole"] > 200
        assert preempted
        assert server.rss_mb < before * 1.15 + 20
        assert server.stop() == 0


def fleet(streams: int = 2000, seconds: float = 20) -> None:
    """2,000 streams at five tokens a second on four simulated instances; memory for fewer than that."""
    flags = ("--num-instances", "4", "--max-num-seqs", "600", "--speedup", "0.12", "--num-kv-blocks", "1000")
    with serving(*FLEET, *flags) as server:
        before_s = server.cpu_s
        found = run(keep_streaming(server.url, streams, 60, seconds, 0.02))
        cpu_us = (server.cpu_s - before_s) / server.metric("vllm:generation_tokens_total") * 1e6
        _empty(server)
        lag_ms = server.metric("blis:clock_lag_max_seconds") * 1e3
        preempted = server.metric("vllm:num_preemptions_total")
        rate = found["tokens"] / found["seconds"]
        state = f"{cpu_us:.0f} us of CPU a token, longest lag {lag_ms:.0f} ms, RSS {server.rss_mb:.0f} MB"
        print("fleet", found, f"{rate:,.0f} tokens/s, {preempted:.0f} preemptions, {state}")
        assert preempted
        assert found["whole"] >= streams * 0.9
        assert server.stop() == 0


def order() -> None:
    """The text of every stream is the pattern, uncut and in order."""
    with serving(*FLEET, "--speedup", "5") as server:
        answers = run(_texts(server.url))
        assert all(text in _PATTERN for text in answers)
        print("order", len(answers), "texts")


async def _texts(url: str) -> list[str]:
    client = HttpClient(Target.of(url, {}))
    bodies = [{"prompt": f"p {n}", "max_tokens": 200} for n in range(100)]
    answers = await asyncio.gather(*(_stream(client, body, None) for body in bodies))
    client.close()
    return ["".join(answer.text) for answer in answers if answer is not None]


def rude() -> None:
    """Slow readers, half-open connections, large bodies, header bombs: the others are served on."""
    with serving(*FLEET, "--max-body-mb", "4") as server:
        print("rude", run(_rude(server)))
        _empty(server)
        assert server.stop() == 0


async def _rude(server: Server) -> dict[str, object]:
    host, port = urlsplit(server.url).hostname, urlsplit(server.url).port
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    opened = []
    body = json.dumps({"prompt": "a", "max_tokens": 2000, "stream": True}).encode()
    for _ in range(50):  # never read
        _, writer = await asyncio.open_connection(host, port)
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        opened.append(writer)
    for _ in range(50):  # never finished
        _, writer = await asyncio.open_connection(host, port)
        writer.write(head + b"Content-Length: 100\r\n\r\n{")
        opened.append(writer)
    refused = []
    for bad in (
        head + b"Content-Length: 10485760\r\n\r\n" + b"x" * 10485760,
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, b"y" * 1000) for n in range(2000)) + b"\r\n",
        b"\x16\x03\x01 nonsense\r\n\r\n",
    ):
        refused.append(await _status(host, port, bad))
    many = min(10_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 1000)
    for _ in range(many - len(opened)):
        _, writer = await asyncio.open_connection(host, port)
        opened.append(writer)
    client = HttpClient(Target.of(server.url, {}))
    begin = time.monotonic()
    answers = [await _stream(client, {"prompt": "a", "max_tokens": 10}, None) for _ in range(10)]
    took_s = (time.monotonic() - begin) / 10
    assert all(answer is not None and answer.end[0] == "ok" for answer in answers)
    client.close()
    for writer in opened:
        writer.close()
    assert refused[0] == 413
    assert refused[1] in (400, 431, 0)
    assert refused[2] in (400, 0)
    return {"connections": many, "refused": refused, "others_s": round(took_s, 3)}


async def _status(host: str | None, port: int | None, data: bytes) -> int:
    """The status that bytes are answered with; 0 = the connection is closed."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                writer.write(data)
                await writer.drain()
            line = await reader.readline()
            return int(line.split()[1]) if line else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


def tls() -> None:
    """https with a certificate from files; plain HTTP on that port harms nothing."""
    folder = scratch("tls")
    folder.mkdir()
    cert, key = folder / "cert.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj"]
    made.append("/CN=localhost")
    subprocess.run([*made, "-keyout", key, "-out", cert], check=True, capture_output=True)
    with serving(*FLEET, "--tls-cert", str(cert), "--tls-key", str(key)) as server:
        parts = urlsplit(server.url)
        assert run(_status(parts.hostname, parts.port, b"GET /health HTTP/1.1\r\n\r\n")) == 0
        trusted = ssl.create_default_context(cafile=str(cert))
        trusted.check_hostname = False
        target = Target(parts.hostname or "", parts.port or 0, trusted)
        answer = run(_stream(HttpClient(target), {"prompt": "a", "max_tokens": 3}, None))
        assert answer is not None
        assert answer.end[0] == "ok"
        print("tls ok")


def ends() -> None:
    """SIGTERM and SIGKILL under load: every stream ends, and nothing hangs."""
    for how, grace in ((signal.SIGTERM, "1"), (signal.SIGTERM, "60"), (signal.SIGKILL, "1")):
        with serving(*FLEET, "--grace", grace) as server:
            ended = run(_ended(server, how))
            print("ends", signal.Signals(how).name, f"grace {grace} s:", ended)
            assert sum(ended.values()) == 100
            assert server.process.wait(30) == (0 if how == signal.SIGTERM else -how)
            assert (ended.get("ok", 0) == 100) == (grace == "60")


async def _ended(server: Server, how: int) -> dict[str, int]:
    client = HttpClient(Target.of(server.url, {}))
    tasks = [
        asyncio.create_task(_stream(client, {"prompt": "a", "max_tokens": 400}, None)) for _ in range(100)
    ]
    await asyncio.sleep(1.5)
    server.process.send_signal(how)
    found: dict[str, int] = {}
    for result in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
        if isinstance(result, BaseException) and not isinstance(result, HttpError | OSError):
            raise result
        kind = "closed" if isinstance(result, BaseException) or result is None else result.end[0]
        found[kind] = found.get(kind, 0) + 1
    return found


CHECKS = {"order": order, "rude": rude, "tls": tls, "ends": ends, "engine": engine, "fleet": fleet}

if __name__ == "__main__":
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files[1], files[1]))
    print(f"open files: at most {files[1]:,}")
    for name in sys.argv[1:] or CHECKS:
        begin = time.monotonic()
        CHECKS[name]()
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
