"""`blis serve`: a simulated fleet that answers like a real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from blis_py.cli import blis_flags, vllm_flags
from blis_py.cli.configure import configure
from blis_py.cli.execute import say
from blis_py.cli.flag import Flag, Flags, Group
from blis_py.cli.options import COMMON
from blis_py.errors import InputError

if TYPE_CHECKING:
    from blis_py.serve.fleet.build import FleetOptions, ServedFleet
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
    Flag("--max-requests", int, "", "Requests that the record has room for. Default 100,000."),
    Flag("--fail-refused", float, "", "Share of requests that are refused.", metavar="SHARE"),
    Flag("--fail-broken", float, "", "Share of answers that break off.", metavar="SHARE"),
    Flag("--fail-kinds", str, "", "Kinds of refusals. Default server_error.", metavar="KIND,…"),
    Flag("--kv-events", str, "", "Publish KV events by ZMQ here: tcp://127.0.0.1:5557.", metavar="ENDPOINT"),
    Flag("--kv-events-topic", str, "", "Their topic. Default kv-events.", metavar="TOPIC"),
    Flag("--kv-events-seed", str, "", "PYTHONHASHSEED of their block hashes. Default 0.", metavar="SEED"),
    Flag("--out", str, "", "Folder for the result of the run, when it is stopped.", metavar="DIR"),
    Flag("--force", bool, "", "Replace the result that is there."),
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

_FLEET_OPTIONS = (
    *("speedup", "text", "text_file", "answer_tokens", "tokenizer", "chat_template", "max_requests"),
    *("kv_events", "kv_events_topic", "kv_events_seed"),
)


def serve(flags: Flags) -> None:
    """Serve a simulated fleet under the OpenAI API: any cluster of `blis run`, in real time or faster.

    Stop it with Ctrl-C. With --out the run is saved, and `blis replay` reproduces it.
    """
    require_extra()
    blis_flags.refuse(flags)
    vllm_flags.refuse(flags)
    settings, options = server_settings(flags), _options(flags)
    if "--out" in flags:
        from blis_py.outputs.places import writable

        writable(flags["--out"], force="--force" in flags)
    from blis_py.serve.server import Service, run

    fleets = _fleets(flags, options)
    for note in fleets[0].setup.notes:
        say(f"note: {note}")
    services = [
        Service(fleet.backend, replace(settings, port=settings.port + number if settings.port else 0))
        for number, fleet in enumerate(fleets)
    ]
    say(fleets[0].setup.models)
    run(services)
    if "--out" in flags:
        _save(fleets, flags["--out"], force="--force" in flags)


def require_extra() -> None:
    """
    Raises:
        InputError: the packages of the server are missing.
    """
    try:
        import fastapi  # noqa: F401
        import jinja2  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        fix = "pip install 'blis-py[serve]'"
        raise InputError(f"needs the package {error.name}", key="serve", fix=fix) from None


def server_settings(flags: Flags) -> ServeSettings:
    """The settings of the server that flags make."""
    from blis_py.serve.settings import ServeSettings

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
        given["max_body_bytes"] = int(flags["--max-body-mb"] * 2**20)
    if (given["tls_cert"] is None) != (given["tls_key"] is None):
        raise InputError("needs both a certificate and a key", key="--tls-cert", fix="give --tls-key, too")
    for name, value in given.items():
        if isinstance(value, int | float) and value < 0:
            raise InputError("must not be negative", key=name, value=value)
    for name in ("--tls-cert", "--tls-key"):
        if name in flags and not os.path.isfile(flags[name]):
            raise InputError("no such file", key=name, value=flags[name])
    return ServeSettings(**{name: value for name, value in given.items() if value is not None})


def _options(flags: Flags) -> FleetOptions:
    from blis_py.serve.fleet.build import FleetOptions
    from blis_py.serve.fleet.failures import FailureSettings

    failures = {name: flags[f"--fail-{name}"] for name in ("refused", "broken") if f"--fail-{name}" in flags}
    if "--fail-kinds" in flags:
        failures["kinds"] = flags["--fail-kinds"].split(",")
    given = {
        name: flags[f"--{name.replace('_', '-')}"]
        for name in _FLEET_OPTIONS
        if f"--{name.replace('_', '-')}" in flags
    }
    for name in ("answer_tokens", "max_requests"):
        if name in given and not 1 <= given[name] <= 10_000_000:
            problem = "must be from 1 to 10,000,000"
            raise InputError(problem, key=f"--{name.replace('_', '-')}", value=given[name])
    return FleetOptions(
        **given,
        served_model_names=tuple(flags.get("--served-model-name", ())),
        failures=FailureSettings().changed(failures),
        record_steps="--out" in flags,
    )


def _fleets(flags: Flags, options: FleetOptions) -> list[ServedFleet]:
    """One fleet, or with a port for each instance one for each."""
    from blis_py.serve.fleet.build import build_fleet

    config = configure(flags)
    if "--instance-ports" not in flags:
        return [build_fleet(config, options)]
    if config.pools:
        fix = "use alike instances"
        raise InputError("pools have no ports of their own", key="--instance-ports", fix=fix)
    if options.kv_events is not None:
        fix = "drop one of the two"
        raise InputError("is one endpoint for all instances", key="--kv-events", fix=fix)
    alone = replace(config, num_instances=1)
    return [build_fleet(alone, options, f"instance-{n}-") for n in range(config.num_instances)]


def _save(fleets: list[ServedFleet], folder: str, *, force: bool) -> None:
    from pathlib import Path

    for number, fleet in enumerate(fleets):
        result = fleet.result()
        own = Path(folder) if len(fleets) == 1 else Path(folder) / f"instance_{number}"
        if result is None:
            say(f"{own}: no requests, no result")
        else:
            result.save(own, force=force, plots=False, itl=True)
            say(f"{own}: {len(result.record.table):,} requests")
