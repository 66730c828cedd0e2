"""Real gateways in front of four simulated instances: they route, survive an outage, and share prefixes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

from servers import FLEET, Server, run, scratch, serving

from blis_py.observe.answer import ObservedAnswer
from blis_py.observe.http import HttpClient, HttpError, Target

_GROUPS, _REQUESTS = 61, 240
_START_S = 60


@contextmanager
def gateway(words: list[object], workers: list[str], policy: str) -> Iterator[str]:
    """A gateway on a free port."""
    port = _free_port()
    command = [*words, "--host", "127.0.0.1", "--port", port, "--worker-urls", *workers, "--policy", policy]
    command += ["--prometheus-port", _free_port(), "--health-check-interval-secs", 1]
    command += ["--cb-timeout-duration-secs", 1, "--health-success-threshold", 1]
    log = scratch("gateway.log")
    with log.open("w") as to:
        process = subprocess.Popen([str(word) for word in command], stdout=to, stderr=to, env=_environment())
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _free_port() -> int:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        return int(own.getsockname()[1])


def _await(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    body = json.dumps({"model": "qwen3-14b", "prompt": "a", "max_tokens": 1}).encode()
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        try:
            request = Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=5):
                return
        except (URLError, OSError):
            if process.poll() is not None:
                break
            time.sleep(0.3)
    raise AssertionError(f"the gateway does not start: {log.read_text()[-2000:]}")


def _prompt(group: int, number: int) -> str:
    return f"group {group} " * 150 + f"question {number}"


async def _load(url: str, seconds: float) -> dict[str, int]:
    """Requests with shared prefixes, evenly over some seconds; how they ended."""
    client = HttpClient(Target.of(url, {}))
    ends: dict[str, int] = {}

    async def one(number: int) -> None:
        await asyncio.sleep(seconds * number / _REQUESTS)
        body = {"model": "qwen3-14b", "prompt": _prompt(number % _GROUPS, number), "max_tokens": 40}
        data = json.dumps({**body, "stream": True}).encode()
        answer = ObservedAnswer()
        try:
            async with asyncio.timeout(60):
                await client.send(client.target.request("POST", "/v1/completions", data), answer)
            answer.ended(0)
            end = answer.end[0] if answer.end[0] == "ok" else answer.end[1][:90]
        except (HttpError, TimeoutError):
            end = "closed"
        ends[end] = ends.get(end, 0) + 1

    await asyncio.gather(*map(one, range(_REQUESTS)))
    client.close()
    return ends


def _hit_rate(servers: list[str]) -> float:
    hits, queries = 0.0, 0.0
    for url in servers:
        for line in urlopen(f"{url}/metrics", timeout=10).read().decode().splitlines():
            if line.startswith("vllm:prefix_cache_hits_total"):
                hits += float(line.rsplit(" ", 1)[1])
            if line.startswith("vllm:prefix_cache_queries_total"):
                queries += float(line.rsplit(" ", 1)[1])
    return hits / queries if queries else 0.0


def _simulated_hit_rate(policy: str) -> float:
    """The same requests under the simulator's own routing."""
    with serving(*FLEET, "--num-instances", "4", "--routing-policy", policy) as server:
        run(_load(server.url, 8))
        return _hit_rate([server.url])


def _ports(server: Server, out: Path) -> dict[str, int]:
    """Ends of the requests in the records of the four instances."""
    server.stop()
    ends: dict[str, int] = {}
    for folder in sorted(out.glob("instance_*")):
        rows = (folder / "requests.csv").read_text().splitlines()
        place = rows[0].split(",").index("outcome")
        for row in rows[1:]:
            outcome = row.split(",")[place]
            ends[outcome] = ends.get(outcome, 0) + 1
    return ends


def _check(name: str, words: list[object]) -> None:
    out = scratch("fleet")
    flags = ("--num-instances", "4", "--instance-ports", "--out", str(out))
    with serving(*FLEET, *flags) as server:
        assert len(server.urls) == 4
        with gateway(words, server.urls, "cache_aware") as url:
            ends = run(_load(url, 8))
            hits = _hit_rate(server.urls)
            assert ends == {"ok": _REQUESTS}, ends
            assert all(_served(one) for one in server.urls)
            ends = run(_with_outage(url, server.urls[1]))
            print(name, "with an outage of one instance:", ends)
            assert ends.get("ok", 0) >= _REQUESTS * 0.6
            time.sleep(3)
            before = _served(server.urls[1])
            run(_load(url, 3))
            print(name, f"the instance is back and has served {_served(server.urls[1]) - before:.0f} more")
        recorded = _ports(server, out)
        print(name, "recorded", recorded)
        assert recorded.get("timed_out", 0) > 0  # failed with the port, once each
    print(name, f"prefix hits {hits:.1%}; simulated: round-robin {_simulated_hit_rate('round-robin'):.1%},")
    print(f"  weighted by precise prefixes {_simulated_hit_rate('weighted'):.1%}")


async def _with_outage(url: str, instance: str) -> dict[str, int]:
    load = asyncio.create_task(_load(url, 6))
    await asyncio.sleep(2)
    client = HttpClient(Target.of(instance, {}))
    answer = ObservedAnswer()
    await client.send(client.target.request("POST", "/admin/outage?seconds=2"), answer)
    client.close()
    return await load


def _served(url: str) -> float:
    lines = urlopen(f"{url}/metrics", timeout=10).read().decode().splitlines()
    name = "vllm:request_success_total"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def sglang_router() -> None:
    from clients import environment

    _check("sglang-router", [environment("sglang-router") / "python", "-m", "sglang_router.launch_router"])


def vllm_router() -> None:
    from clients import environment

    _check("vllm-router", [environment("vllm-router") / "python", "-m", "vllm_router.launch_router"])


CHECKS = {"sglang-router": sglang_router, "vllm-router": vllm_router}

if __name__ == "__main__":
    for name in sys.argv[1:] or CHECKS:
        CHECKS[name]()
