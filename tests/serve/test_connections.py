"""Connections and the command line of a server: what is refused before any request is read."""

from __future__ import annotations

import socket
from contextlib import suppress

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from serving import HANGS_S
from test_observe import served

from blis_py.cli import main
from blis_py.serve.server import Service
from blis_py.serve.settings import ServeSettings


def _connected(service: Service) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.port), timeout=HANGS_S)


def _rest(connection: socket.socket) -> bytes:
    """What comes until the connection is closed."""
    got = b""
    while part := connection.recv(4096):
        got += part
    return got


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\nA: "])
def test_a_head_that_does_not_come_closes_the_connection(begun: bytes) -> None:
    with served(ServeSettings(port=0, head_timeout_s=0.2)) as (service, _):
        with _connected(service) as connection:
            connection.sendall(begun)
            assert _rest(connection) == b""
        for _ in range(100):  # a head that is sent in time: on a busy machine this test may be late
            with _connected(service) as connection, suppress(OSError):
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if _rest(connection).startswith(b"HTTP/1.1 200"):
                    return
        pytest.fail("no head is in time")


def test_connections_beyond_the_limit_get_503_and_later_ones_are_served() -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    with served(ServeSettings(port=0, max_connections=2)) as (service, _):
        held = [_connected(service) for _ in range(2)]
        for one in held:
            one.sendall(request)
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        with _connected(service) as refused:
            assert _rest(refused).startswith(b"HTTP/1.1 503")
        for one in held:
            one.close()
        for _ in range(1000):  # until the server has seen that they are closed
            with _connected(service) as late:
                late.sendall(request)
                if late.recv(4096).startswith(b"HTTP/1.1 200"):
                    return
        pytest.fail("no connection is accepted any more")


@pytest.mark.parametrize(
    "flags",
    [
        ("--host", ""),
        ("--max-body-mb", "nan"),
        ("--max-body-mb", "inf"),
        ("--max-body-mb", "-1"),
        ("--grace", "nan"),
        ("--grace", "inf"),
        ("--grace", "-1"),
        ("--max-queue", "-1"),
        ("--port", "65536"),
        ("--port", "-1"),
        ("--max-connections", "0"),
        ("--api-key", ""),
        ("--api-key", "é"),
        ("--tls-key", "none.pem"),
        ("--tls-cert", "none.pem"),
        ("--speedup", "1e-300"),
        ("--speedup", "nan"),
        ("--fail-refused", "nan"),
        ("--host", "0.0.0.0.0"),
        ("--host", "a\x00b"),
        ("--host", "x" * 300),
        ("--tokenizer", ""),
        ("--answer-tokens", "0"),
        ("--max-requests", "0"),
    ],
)
def test_a_wrong_setting_is_refused_before_it_serves(
    flags: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    port = () if flags[0] == "--port" else ("--port", "0")
    assert main(["serve", "--model", "qwen3-14b", "--gpu", "h100", *port, *flags]) == 2
    error = capsys.readouterr().err
    assert error.splitlines()[-1].startswith("error: ")
    assert "a bug" not in error
