"""`blis serve`: a simulated fleet that answers like a real one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from blis_py.cli.flags import blis_flags, vllm_flags
from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.cli.flags.options import COMMON
from blis_py.cli.flags.out import FORCE, out_folder
from blis_py.errors import InputError
from blis_py.serve.settings import ServeSettings

SERVER = (
    Flag("--host", str, "", "Address to listen on. Default 127.0.0.1.", metavar="ADDRESS"),
    Flag("--port", int, "", "Port; 0 = any free one. Default 8000."),
    Flag("--api-key", str, "", "Clients must send this key. Default: $BLIS_API_KEY, or none.", metavar="KEY"),
    Flag("--max-queue", int, "", "Answer 429 when so many requests are waiting. Default unlimited."),
    Flag("--max-body-mb", float, "", "Largest body of a request, in MiB. Default 32."),
    Flag("--tls-cert", str, "", "Certificate (PEM), for https.", metavar="FILE"),
    Flag("--tls-key", str, "", "Its key (PEM).", metavar="FILE"),
    Flag("--grace", float, "", "Seconds that a stop waits for open responses. Default 30."),
    Flag("--enable-admin", bool, "", "Routes that change the server need no key: /reset_prefix_cache, …"),
    Flag("--allowed-host", list[str], "", "Further name of the server (repeatable).", metavar="HOST"),
    Flag("--trust-request-chat-template", bool, "", "Render chat templates of requests."),
    Flag(
        "--max-connections",
        int,
        "",
        "Most connections at a time. Default 65536; never more than open files allow.",
    ),
)
FLEET = (
    Flag("--speedup", float, "", "Simulated seconds per second. Default 1.", metavar="N"),
    Flag("--text", str, "", "What is answered: pattern, echo, or file. Default pattern."),
    Flag("--text-file", str, "", "Answers, one per line, in turn.", metavar="FILE"),
    Flag("--answer-tokens", int, "", "Length of an answer that no max_tokens limits. Default 128."),
    Flag("--tokenizer", str, "", "A tokenizer.json. Default: about four characters a token.", metavar="FILE"),
    Flag("--chat-template", str, "", "Chat template (Jinja).", metavar="FILE"),
    Flag("--served-model-name", list[str], "", "Name for clients (repeatable).", metavar="NAME"),
    Flag("--instance-ports", bool, "", "A port for each instance, from --port on, and no router in front."),
    Flag(
        "--instance-paths", bool, "", "A path for each instance, /instance-0 and on, and no router in front."
    ),
    Flag("--max-requests", int, "", "Room of the record; requests beyond it get 503. Default 100,000."),
    Flag("--fail-refused", float, "", "Share of requests that are refused.", metavar="SHARE"),
    Flag("--fail-broken", float, "", "Share of answers that break off.", metavar="SHARE"),
    Flag("--fail-kinds", str, "", "Kinds of refusals. Default server_error.", metavar="KIND,…"),
    Flag("--kv-events", str, "", "Publish KV events by ZMQ here: tcp://127.0.0.1:5557.", metavar="ENDPOINT"),
    Flag("--kv-events-topic", str, "", "Their topic. Default kv-events.", metavar="TOPIC"),
    Flag("--kv-events-seed", str, "", "PYTHONHASHSEED of their block hashes. Default 0.", metavar="SEED"),
    out_folder("the result of the run, when it is stopped"),
    FORCE,
)


def without(own: tuple[Flag, ...], *groups: Group) -> Iterator[Group]:
    """Groups without the flags whose names are taken."""
    taken = {flag.name for flag in own}
    for title, flags in groups:
        yield title, tuple(flag for flag in flags if flag.name not in taken)


GROUPS = (
    ("Server", SERVER),
    ("Fleet", FLEET),
    *((title, flags) for title, flags in COMMON if title != "Trace"),
    *without((*SERVER, *FLEET), vllm_flags.FLAGS, blis_flags.FLAGS),
)


def serve(flags: Flags) -> None:
    """Serve a simulated fleet under the OpenAI API: any cluster of `blis run`, in real time or faster.

    Stop it with Ctrl-C. With --out the run is saved, and `blis replay` reproduces it.
    """
    require_extra()
    for name in ("--intervals", "--cross-check"):
        if name in flags:
            raise InputError("is for one run", key=name, fix="use it with `blis run`")
    blis_flags.refuse(flags)
    vllm_flags.refuse(flags)
    from blis_py.cli.verbs._serve_fleet import serve_fleet

    serve_fleet(flags, server_settings(flags))


def require_extra() -> None:
    """
    Raises:
        InputError: the packages of the server are missing.
    """
    for package in ("fastapi", "jinja2", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            fix = "pip install 'blis-py[serve]'"
            raise InputError(f"needs the package {package}", key="serve", fix=fix)


def server_settings(flags: Flags) -> ServeSettings:
    """The settings of the server that flags make.

    Raises:
        InputError: a certificate without a key, a negative limit, or a file that does not exist.
    """
    given = {
        "host": flags.get("--host"),
        "port": flags.get("--port"),
        "api_key": flags.get("--api-key", os.environ.get("BLIS_API_KEY") or None),
        "max_queue": flags.get("--max-queue"),
        "tls_cert": flags.get("--tls-cert"),
        "tls_key": flags.get("--tls-key"),
        "grace_s": flags.get("--grace"),
    }
    if "--max-body-mb" in flags:
        given["max_body_bytes"] = int(_from_zero(flags, "--max-body-mb", 1024.0) * 2**20)
    for name, most in _MOST.items():
        if name in flags:
            _from_zero(flags, name, most)
    given["admin"] = "--enable-admin" in flags
    given["allowed_hosts"] = tuple(map(_host, flags.get("--allowed-host", ())))
    given["trust_chat_template"] = "--trust-request-chat-template" in flags
    given["max_connections"] = flags.get("--max-connections")
    if given["max_connections"] == 0:
        raise InputError("must be more than 0", key="--max-connections", value=0)
    if not given["host"] and given["host"] is not None:
        fix = "write 127.0.0.1, or 0.0.0.0 for all interfaces"
        raise InputError("must not be empty", key="--host", value=given["host"], fix=fix)
    key = given["api_key"]
    if key is not None and not (key and key.isascii() and key.isprintable()):
        fix = "write printable ASCII, or drop it"
        raise InputError("must not be empty, and of printable ASCII", key="--api-key", fix=fix)
    _check_tls(flags)
    return ServeSettings(**{name: value for name, value in given.items() if value is not None})


def _host(name: str) -> str:
    """
    Raises:
        InputError: no name of a host, as in a URL without scheme, path and port.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?", name):
        fix = "write it as in a URL, without scheme, path and port: llm.example.org"
        raise InputError("not a name of a host", key="--allowed-host", value=name, fix=fix)
    return name.lower()


_MOST = {"--port": 65535, "--max-queue": 10**9, "--grace": 86400.0, "--max-connections": 10**6}


def _from_zero(flags: Flags, name: str, most: float) -> Any:
    """A number from 0 to a limit.

    Raises:
        InputError: it is not.
    """
    value = flags[name]
    if not 0 <= value <= most:
        raise InputError(f"must be from 0 to {most:,}", key=name, value=value)
    return value


def _check_tls(flags: Flags) -> None:
    if ("--tls-cert" in flags) != ("--tls-key" in flags):
        missing = "--tls-key" if "--tls-cert" in flags else "--tls-cert"
        raise InputError("needs both a certificate and a key", key="--tls-cert", fix=f"give {missing}, too")
    for name in ("--tls-cert", "--tls-key"):
        if name in flags and not os.path.isfile(flags[name]):
            raise InputError("no such file", key=name, value=flags[name])
