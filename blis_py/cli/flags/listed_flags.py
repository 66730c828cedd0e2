"""Flags of servers that the command line lacks, by the tables of `profiles/launch`, as `--launch` reads them.

A flag that stands for a setting sets it, one that changes nothing is accepted, and any other is refused by
its name with what its server would do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blis_py.cli.flags.flag import OF_SERVERS, Flag, Flags
from blis_py.errors import InputError
from blis_py.launch.findings import LaunchFindings
from blis_py.launch.flag_table import ENGINES, FlagMeaning, FlagTable, flag_table
from blis_py.launch.flag_words import spelled

_STAGES = "drop it: an instance has no pipeline stages here; --tp divides a model, --instances adds servers"
_INSTEAD = {
    **dict.fromkeys(("--pp", "-pp", "--pp-size", "--pipeline-parallel-size"), _STAGES),
    "--hf-overrides": "give a config.json with --model-config",
    "--kv-cache-memory-bytes": "give the number of blocks with --num-kv-blocks",
    "--max-total-tokens": "give the number of blocks with --num-kv-blocks",
    "--moe-a2a-backend": "give --moe-backend deepep",
    "--quantization": "drop it if the checkpoint is quantised so, else give --model-config of one",
}
_IDLE_PARTS = ("served", "rank")
"""Parts that say nothing of a simulated server."""
_UNREAD = "it has no meaning without the rest of its server: give its line with --launch"


def flag_of(name: str) -> Flag | None:
    """A hidden flag for one that only servers have; None if no table lists it."""
    found = _listed(name, "")
    if found is None:
        return None
    _, meaning = found
    kind: Any = bool if meaning.switch else list[str] if meaning.many else str
    return Flag(name, kind, "", hidden=True, many=meaning.many)


def _listed(name: str, engine: str) -> tuple[FlagTable, FlagMeaning] | None:
    """The table that lists a flag, that of the engine first, and its meaning there."""
    family = engine.partition("-")[0]
    for each in sorted(ENGINES, key=lambda known: known != family):
        table = flag_table(each)
        meaning = table.meaning("flags", spelled(name, table))
        if meaning is not None:
            return table, meaning
    return None


def settings(flags: Flags) -> list[tuple[str, str, Any]]:
    """Settings by flags that only servers have, as (flag, key, value).

    Raises:
        InputError: one that asks for something that is not simulated.
    """
    return [triple for name, text in flags.get(OF_SERVERS, ()) for triple in _settings(name, text, flags)]


def _settings(name: str, text: str, flags: Flags) -> Iterator[tuple[str, str, Any]]:
    found = _listed(name, str(flags.get("--engine", "")))
    if found is None:
        return
    table, meaning = found
    findings = LaunchFindings(table)
    try:
        findings.add("flags", spelled(name, table), text)
    except InputError as error:
        if meaning.refuse:
            raise _refusal(name, text, table, meaning.would) from None
        raise InputError(error.problem, key=name, value=error.value, fix=error.fix) from None
    if "replicas" in findings.parts:
        yield name, "attention_dp", int(findings.parts["replicas"])
    elif problem := _problem(findings, meaning):
        raise _refusal(name, text, table, problem)
    for key, (value, _) in findings.settings.items():
        yield name, key, value


def _problem(findings: LaunchFindings, meaning: FlagMeaning) -> str:
    """Difference of a server under a flag; empty if it is a setting, or changes nothing."""
    if findings.unmodelled:
        return meaning.would or "is not modelled"
    return _UNREAD if findings.parts.keys() - set(_IDLE_PARTS) else ""


def _refusal(name: str, text: str, table: FlagTable, would: str) -> InputError:
    problem = f"is a flag of {table.title} that cannot be honoured: {would}"
    return InputError(problem, key=name, value=text or None, fix=_INSTEAD.get(name, "drop it"))
