"""The verbs of `blis`, and of those that have verbs of their own: module and summary of each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from blis_py.cli.flags.flag import Flag, Flags, Group

_INSTALLED = "blis_engine"
ENGINE = _INSTALLED if (Path(__file__).parents[2] / _INSTALLED).is_dir() else "engine"
"""The package of the engine: `engine` in the repository, `blis_engine` where a wheel has installed both."""


class Verb(NamedTuple):
    """A command. Its module has the function, named as the verb, and `GROUPS`, the flags it takes."""

    module: str
    what: str
    function: str = ""
    """Name of the function where that is not the verb; or of a `Program`."""


class Program(NamedTuple):
    """A command with commands of its own."""

    name: str
    what: str
    verbs: dict[str, Verb]
    flags: tuple[Flag, ...] = ()


class Command(NamedTuple):
    """A verb, imported."""

    run: Callable[[Flags], int | None]
    groups: tuple[Group, ...]


def command_of(name: str, verb: Verb) -> Command | Program:
    """Import the module of a verb, and no other."""
    module = import_module(verb.module)
    command = getattr(module, verb.function or name)
    if isinstance(command, Program):
        return command
    return Command(command, module.GROUPS[name] if isinstance(module.GROUPS, dict) else module.GROUPS)


def _of(module: str, what: str) -> Verb:
    return Verb(f"blis_py.cli.verbs.{module}", what)


BLIS = Program(
    "blis",
    "Simulate clusters that serve large language models.",
    {
        "run": _of("run", "Simulate a workload: generated, from a spec, or from a trace."),
        "replay": _of("replay", "Simulate the requests of a trace, at the times they came."),
        "serve": _of("serve", "Serve a simulated fleet under the OpenAI API, in real time or faster."),
        "observe": _of("observe", "Drive a server with a workload and record every token."),
        "plan": _of("plan", "Find the cheapest configuration that meets its targets."),
        "sweep": _of("sweep", "Run every combination of some settings: one row per run."),
        "convert": _of("convert", "Write requests from any source in another format."),
        "compose": _of("compose", "Merge several traces, or several workload specs."),
        "plot": _of("plot", "Draw figures of one result, or of several beside each other."),
        "report": _of("report", "Write a run, comparison, plan, sweep or calibration as one HTML file."),
        "ui": _of("ui", "Open a local page that simulates again while settings are moved."),
        "explain": _of("explain", "Explain where the time of a request went, and what would change it."),
        "compare": _of("compare", "Put runs of the same requests beside each other."),
        "calibrate": _of("calibrate", "Compare a simulated run with the measured one."),
        "parity": _of("parity", "Compare the batches of an engine with the simulator's, step by step."),
        "models": _of("models", "List the bundled models, their sizes, and what is refused and why."),
        "gpus": _of("gpus", "List the bundled GPUs and what is known of them."),
        "engines": _of("engines", "List the engine presets: what each sets, and where that is from."),
        "profile": Verb("blis_py.cli.verbs.profile", "Step times from measurements.", "PROGRAM"),
        "engine": Verb(
            f"{ENGINE}.cli",
            "The real engine: run, serve, profile, generate, bench. Takes pip install 'blis-py[engine]'.",
            "PROGRAM",
        ),
    },
    (
        Flag("--version", bool, "", "Print the version and stop."),
        Flag("--install-completion", str, "", "Have a shell complete commands and flags.", metavar="SHELL"),
        Flag("--show-completion", str, "", "Print the script for that: bash, zsh, fish.", metavar="SHELL"),
    ),
)
