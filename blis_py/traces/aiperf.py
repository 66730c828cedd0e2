"""Exports of NVIDIA's AIPerf and its predecessor GenAI-Perf.

AIPerf's `profile_export.jsonl` has a line for every request: `metadata` says when it started (ns) and which
turn of which conversation it is, `metrics` its lengths. First releases: `timestamp_ns` and `credit_phase`.
GenAI-Perf's `profile_export.json` has the text of prompts and the chunks of answers, no tokens.
Source: github.com/ai-dynamo/aiperf, github.com/triton-inference-server/perf_analyzer; Apache-2.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.opening import read_text
from blis_py.files.paths import is_file
from blis_py.requests.table import RequestTable
from blis_py.traces._gathered import Gathered
from blis_py.traces._json_rows import first_of, json_rows, within
from blis_py.traces.reading import Reading
from blis_py.traces.tokens import Tokens

_STARTS = (("metadata", "request_start_ns"), ("metadata", "timestamp_ns"))
_NOT_SENT = ("was_cancelled", "context_overflow_skip")
_PHASES = (("metadata", "benchmark_phase"), ("metadata", "credit_phase"))


class _Conversations:
    """Names of conversations; one without an identity of its own begins anew where a turn occurs again."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Any], int] = {}

    def name(self, metadata: Any, turn: Any) -> str:
        own, conversation = (within(metadata, key) for key in ("x_correlation_id", "conversation_id"))
        if (name := str(own or conversation or "")) == "":
            return ""
        times = self._seen[name, turn] = self._seen.get((name, turn), 0) + 1
        return f"{name}/{times}" if times > 1 else name


def read_aiperf(path: Path, reading: Reading) -> RequestTable:
    """The answered requests of the profiling phase; turns of a conversation are a session."""
    gathered, conversations = Gathered(path, reading), _Conversations()
    warm_up = failed = 0
    for number, where, row in json_rows(path, reading):
        if first_of(row, _PHASES) == "warmup":
            warm_up += 1
        elif row.get("error") is not None or any(within(row, "metadata", key) is True for key in _NOT_SENT):
            failed += 1
        else:
            lengths = (_value(row, f"{side}_sequence_length") for side in ("input", "output"))
            metadata, turn = row.get("metadata"), within(row, "metadata", "turn_index")
            gathered.add(
                where,
                number,
                first_of(row, _STARTS),
                *lengths,
                conversation=conversations.name(metadata, str(turn)),
                turn=turn,
                answered_ns=within(metadata, "request_end_ns"),
            )
    settings = within(_beside(path), "input_config", "loadgen")
    reading.kept_in_flight(within(settings, "concurrency"), paced=bool(within(settings, "request_rate")))
    reading.left_out(warm_up, "sent to warm the server up")
    reading.left_out(failed, "not answered")
    return gathered.table()


def _beside(path: Path) -> Any:
    """AIPerf's summary, with the settings of the run, where it lies beside the requests."""
    summary = path.with_name("profile_export_aiperf.json")
    if not is_file(summary):
        return None
    try:
        return parse_json(read_text(summary), summary)
    except InputError:
        return None


def _value(row: dict[str, Any], metric: str) -> Any:
    value = within(row, "metrics", metric)
    return value.get("value") if isinstance(value, dict) else value


def read_genai_perf(path: Path, reading: Reading, document: dict[str, Any]) -> RequestTable:
    """The requests of one experiment. Answer lengths are chunk counts, prompt lengths those of the text.

    Raises:
        InputError: the file has no experiments, or they have no requests.
    """
    experiments = document["experiments"]
    if not isinstance(experiments, list) or not experiments:
        raise InputError("has no experiments", file=path, key="experiments")
    requests = within(reading.chosen(experiments, path, "experiments"), "requests")
    if not isinstance(requests, list):
        raise InputError("has no requests", file=path, key="experiments.requests")
    tokens, gathered = Tokens(reading), Gathered(path, reading)
    for number, request in enumerate(requests):
        start, chunks = first_of(request, (("timestamp",),)), within(request, "response_timestamps")
        prompt = _prompt(within(request, "request_inputs"))
        length = "nothing" if prompt is None else max(tokens.count(prompt), 1)
        output_tokens = len(chunks) if isinstance(chunks, list) else "nothing"
        where = f"{path}: experiments[{reading.part or 0}].requests[{number}]"
        gathered.add(where, number, start, length, output_tokens)
    reading.note("answers are as long as they had chunks: the file has no token counts")
    tokens.note()
    return gathered.table()


def _prompt(inputs: Any) -> str | None:
    """The prompt text, whatever the endpoint."""
    payload = within(inputs, "payload")
    if isinstance(payload, str):
        try:
            payload = parse_json(payload)
        except InputError:
            return None
    payload = payload if isinstance(payload, dict) else inputs
    for key in ("prompt", "text_input"):
        if isinstance(prompt := within(payload, key), str):
            return prompt
    messages = within(payload, "messages")
    if not isinstance(messages, list):
        return None
    texts = [within(message, "content") for message in messages]
    return "\n".join(text for text in texts if isinstance(text, str))
