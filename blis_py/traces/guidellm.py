"""GuideLLM's `benchmarks.json`: the requests sent, with their times.

Every benchmark of the file lists its requests under `successful`, `incomplete` and `errored`; the successful
ones are read. The key of the start time depends on the version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.traces._gathered import Gathered, seconds
from blis_py.traces._json_rows import any_of, first_of, items, within
from blis_py.traces.reading import Reading

_STARTS = (("request_start_time",), ("start_time",), ("info", "timings", "request_start"))
_INPUTS = (("prompt_tokens",), ("input_metrics", "total_tokens"), ("input_metrics", "text_tokens"))
_OUTPUTS = (("output_tokens",), ("output_metrics", "total_tokens"), ("output_metrics", "text_tokens"))
_ENDS = (("request_end_time",), ("end_time",), ("info", "timings", "request_end"))
_CONVERSATIONS = (("conversation_id",), ("info", "conversation_id"))
_TURNS = (("turn_index",), ("info", "turn_index"))
_STRATEGIES = (("args", "strategy"), ("config", "strategy"), ("scheduler", "strategy"))


def _conversation(request: Any) -> Any:
    """Name of a request's conversation; agents of one conversation have one each."""
    name, agent = any_of(request, _CONVERSATIONS), within(request, "info", "agent_id")
    return f"{name}/{agent}" if name and agent else name


def _note_strategy(benchmark: Any, reading: Reading) -> None:
    """The strategies that keep requests in flight; `throughput` has no limit unless it is given."""
    strategy = next((value for place in _STRATEGIES if (value := within(benchmark, *place))), None)
    kind = within(strategy, "type_") or within(strategy, "type")
    if kind == "synchronous":
        reading.kept_in_flight(1)
    elif kind == "concurrent":
        reading.kept_in_flight(within(strategy, "streams") or within(strategy, "max_concurrency"))
    elif kind == "throughput":
        reading.kept_in_flight(within(strategy, "max_concurrency"))


def read(path: Path, reading: Reading, document: dict[str, Any]) -> RequestTable:
    """The successful requests of one benchmark; `FILE#1` is the second.

    Raises:
        InputError: several benchmarks, or a file saved without its requests.
    """
    benchmarks = document["benchmarks"]
    if not isinstance(benchmarks, list) or not benchmarks:
        raise InputError("has no benchmarks", file=path, key="benchmarks")
    benchmark = reading.chosen(benchmarks, path, "benchmarks")
    _note_strategy(benchmark, reading)
    requests = within(benchmark, "requests")
    answered = within(requests, "successful")
    if not isinstance(answered, list):
        fix = "save it as JSON with its requests"
        raise InputError("has no requests, only figures", file=path, key="requests.successful", fix=fix)
    others = sum(len(items(within(requests, kind))) for kind in ("incomplete", "errored"))
    reading.left_out(others, "not answered")
    gathered = Gathered(path, reading)
    for number, request in enumerate(answered):
        where = f"{path}: requests.successful[{number}]"
        start, prompt, output = (first_of(request, places) for places in (_STARTS, _INPUTS, _OUTPUTS))
        gathered.add(
            where,
            number,
            seconds(start),
            prompt,
            output,
            conversation=_conversation(request),
            turn=any_of(request, _TURNS),
            answered_ns=seconds(any_of(request, _ENDS)),
        )
    return gathered.table()
