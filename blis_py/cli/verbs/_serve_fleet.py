"""A simulated fleet from flags: built, served, saved. Needs the extra `serve`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from blis_py.cli.flags.configure import configure
from blis_py.cli.flags.flag import Flags
from blis_py.cli.flags.out import check_out
from blis_py.cli.verbs._execute import say
from blis_py.errors import InputError
from blis_py.serve.fleet.backend import FleetBackend
from blis_py.serve.fleet.build import FleetOptions, ServedFleet, build_fleet
from blis_py.serve.fleet.failures import FailureSettings
from blis_py.serve.fleet.journal import RunJournal
from blis_py.serve.server import Service, run
from blis_py.serve.settings import ServeSettings

_FLEET_OPTIONS = (
    *("speedup", "text", "text_file", "answer_tokens", "tokenizer", "chat_template", "max_requests"),
    *("kv_events", "kv_events_topic", "kv_events_seed"),
)


def serve_fleet(flags: Flags, settings: ServeSettings) -> None:
    """Serve until a signal comes, then save the run."""
    options = _options(flags)
    check_out(flags)
    fleets = _fleets(flags, options)
    for note in fleets[0].setup.notes:
        say(f"note: {note}")
    services = _services(flags, [fleet.backend for fleet in fleets], settings)
    if "--out" in flags:
        for number, fleet in enumerate(fleets):
            own = f".instance_{number}" if len(fleets) > 1 else ""
            path = Path(f"{Path(flags['--out'])}{own}.journal.jsonl")
            fleet.backend.journal = RunJournal(path, force="--force" in flags)
    say(fleets[0].setup.models)
    run(services)
    if "--out" in flags:
        _save(fleets, flags["--out"], force="--force" in flags)


def _check_alone(flags: Flags) -> None:
    """
    Raises:
        InputError: a flag without the one that it belongs to, or a name that no client could send.
    """
    if "--text-file" in flags and flags.get("--text") != "file":
        raise InputError("goes with --text file", key="--text-file", fix="add --text file, or drop it")
    for name in ("--kv-events-topic", "--kv-events-seed"):
        if name in flags and "--kv-events" not in flags:
            raise InputError("goes with --kv-events", key=name, fix="add --kv-events ENDPOINT, or drop it")
    for model in flags.get("--served-model-name", ()):
        if not model or not model.isprintable():
            fix = "write printable characters"
            raise InputError("not a name of a model", key="--served-model-name", value=model, fix=fix)


def _options(flags: Flags) -> FleetOptions:

    failures = {name: flags[f"--fail-{name}"] for name in ("refused", "broken") if f"--fail-{name}" in flags}
    if "--fail-kinds" in flags:
        failures["kinds"] = flags["--fail-kinds"].split(",")
    _check_alone(flags)
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
    """One fleet, or with a port or path for each instance one for each."""
    config = configure(flags)
    apart = [name for name in ("--instance-ports", "--instance-paths") if name in flags]
    if not apart:
        return [build_fleet(config, options)]
    if len(apart) > 1:
        raise InputError("excludes --instance-ports", key="--instance-paths", fix="drop one of the two")
    if config.pools:
        raise InputError("pools are not served apart", key=apart[0], fix="use alike instances")
    if options.kv_events is not None:
        fix = "drop one of the two"
        raise InputError("is one endpoint for all instances", key="--kv-events", fix=fix)
    alone = replace(config, num_instances=1)
    return [build_fleet(alone, options, f"instance-{n}-") for n in range(config.num_instances)]


def _services(flags: Flags, backends: list[FleetBackend], settings: ServeSettings) -> list[Service]:
    """One service, or one for each port."""
    if "--instance-paths" in flags:
        return [Service({f"/instance-{n}": backend for n, backend in enumerate(backends)}, settings)]
    ports = [settings.port + n if settings.port else 0 for n in range(len(backends))]
    own = zip(backends, ports, strict=True)
    return [Service({"": backend}, replace(settings, port=port)) for backend, port in own]


def _save(fleets: list[ServedFleet], folder: str, *, force: bool) -> None:
    for number, fleet in enumerate(fleets):
        own = Path(folder) if len(fleets) == 1 else Path(folder) / f"instance_{number}"
        result, journal = fleet.result(), fleet.backend.journal
        if fleet.backend.live.failure is not None and journal is not None:
            say(f"{own}: the run has failed; its requests are in {journal.path}")
        elif result is None:
            say(f"{own}: no requests, no result")
        else:
            result.save(own, force=force, plots=False, itl=True)
            if fleet.rounds is not None:
                fleet.rounds.write(own)
            say(f"{own}: {len(result.record.table):,} requests")
        if journal is not None and fleet.backend.live.failure is None:
            journal.remove()
