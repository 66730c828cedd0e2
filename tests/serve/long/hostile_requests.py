"""600 hostile requests at both servers, one after another: what each costs, and what is left of it.

    python tests/serve/long/hostile_requests.py [fleet] [engine]

Clients stay until they have the answer, but for requests that are none in HTTP. After each request `/health`
answers, and the event loop's thread has used bounded CPU time: its own, so that other work on the machine
does not count. At the end the memory is back, and SIGTERM ends the process in the middle of further hostile
requests.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from hostile import ANSWERED, COMPLETIONS, Hostile, fixed, fuzzed, large
from servers import ENGINE, FLEET, Server, serving

_REQUESTS = 600
_MOST_CPU_S = 10.0
_MOST_MIB = 300
_WAIT_S = 900
_GRACE_S, _END_S = 3, 120
_HEAVY_BYTES = 1 << 23
"""More than that many at a time are for the memory of the client, too."""
_RAW = {
    "no request": b"\0\1\2\3\r\n\r\n",
    "a long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 50_000 + b"\r\n",
    "no host": b"POST /v1/completions HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a negative length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -2\r\n\r\n{}",
    "a huge length": b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999\r\n\r\n{}",
    "a bad chunk": b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    "an upgrade": b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a pipeline": b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 200,
}


def _wire(one: Hostile) -> bytes:
    headers = {"Host": "localhost", "Content-Type": "application/json", **one.headers}
    lines = [f"{one.method} {one.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    lines += [f"Content-Length: {len(one.body)}", "Connection: close"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + one.body


def _requests() -> Iterator[tuple[str, bytes]]:
    """All that are fixed, those of many bytes, and a sample of the others."""
    first = [one for one in fixed() if "/admin/outage" not in one.path]
    others = _REQUESTS - len(_RAW) - len(first) - sum(1 for _ in large(1000))
    yield from _RAW.items()
    for one in chain(first, large(), random.Random(1).sample(list(fuzzed()), others)):
        yield one.name, _wire(one)


def _send(server: Server, data: bytes, *, goes: bool = False) -> int:
    """The status of a response; 0 = the connection was closed without one.

    Args:
        goes: whether the client closes its side behind the request, for which it is not answered any more.
    """
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=_WAIT_S) as connection:
        try:
            connection.sendall(data)
            if goes:
                with contextlib.suppress(OSError):  # it may have been refused and closed by now
                    connection.shutdown(socket.SHUT_WR)
            got = b""
            while part := connection.recv(1 << 16):
                got = (got + part)[:100]
        except ConnectionError:
            return 0
    return int(got.split()[1]) if got.startswith(b"HTTP/1.1 ") else 0


def _loop_cpu_s(server: Server) -> float:
    """CPU time of the main thread, which is the event loop's."""
    pid = server.process.pid
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def hostile(name: str, *words: str) -> None:
    """One server."""
    wrong, most_s, count = list[tuple[str, int, float]](), 0.0, 0
    with serving(*words, "--grace", str(_GRACE_S)) as server:
        _send(server, _wire(Hostile("warm", COMPLETIONS, b'{"prompt": "a", "guided_choice": ["a", "b"]}')))
        before_mib = server.rss_mb
        for what, data in _requests():
            count += 1
            begin_s = _loop_cpu_s(server)
            status = _send(server, data, goes=what in _RAW)
            server.get("/health")
            used_s = _loop_cpu_s(server) - begin_s
            most_s = max(most_s, used_s)
            if status not in ANSWERED | ({0} if what in _RAW else set()) or used_s > _MOST_CPU_S:
                wrong.append((what, status, used_s))
        time.sleep(1)
        print(f"{name}: {count} requests, at most {most_s:.2f} CPU s of the event loop each")
        print(f"{name}: RSS {before_mib:.0f} -> {server.rss_mb:.0f} MiB")
        assert not wrong, wrong
        assert server.rss_mb < before_mib + _MOST_MIB
        assert server.get("/health/ready") == ""
        _end(server)


def _end(server: Server) -> None:
    heavy = [data for _, data in _requests() if 100_000 < len(data) < _HEAVY_BYTES]
    senders = [threading.Thread(target=_send, args=(server, data), daemon=True) for data in heavy]
    for sender in senders:
        sender.start()
    begin = time.monotonic()
    code = server.stop(signal.SIGTERM, _END_S)
    print(f"SIGTERM: exit code {code} after {time.monotonic() - begin:.1f} s")
    assert code in (0, 128 + signal.SIGTERM)


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["fleet", "engine"]
    servers = {"fleet": (*FLEET, "--speedup", "100"), "engine": (*ENGINE, "--num-kv-blocks", "600")}
    for one in servers:
        if one in wanted:
            hostile(one, *servers[one])
