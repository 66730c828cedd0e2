"""Serves a workload: requests arrive by the engine's clock, or all at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blis_py.core.slo import instance_priorities
from blis_py.errors import InputError
from blis_py.workload.table import RequestTable
from engine.engine import LLMEngine
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence as Running

Progress = Callable[[int, int], None]


def serve(
    engine: LLMEngine,
    table: RequestTable,
    prompts: Sequence[list[int]],
    *,
    temperature: float = 0.0,
    at_once: bool = False,
    progress: Progress | None = None,
) -> list[Running | InputError]:
    """Serves every request of the table, each with as many output tokens as the table says.

    Requests come at the times of the table whatever the engine does (an open loop), and are handed to it
    at the next step boundary. The engine must be as new (`LLMEngine.reset`).

    Args:
        prompts: token ids, one list per request.
        at_once: all requests are there from the beginning.

    Returns:
        What became of each request; the refusal where it could never be served.
    """
    priorities = instance_priorities()
    outcomes: list[Running | InputError] = []
    ended, clock = 0, engine.clock
    while len(outcomes) < len(table) or engine.has_unfinished:
        now_ns = clock.now_ns()
        while len(outcomes) < len(table):
            row = len(outcomes)
            arrival_ns = 0 if at_once else int(table.arrival_ns[row])
            if arrival_ns > now_ns:
                break
            deadline_ns = int(table.deadline_ns[row])
            if deadline_ns >= 0:
                deadline_ns += arrival_ns - int(table.arrival_ns[row])
            try:
                outcome: Running | InputError = engine.add_request(
                    prompts[row],
                    SamplingParams(
                        temperature=temperature, max_tokens=int(table.output_tokens[row]), ignore_eos=True
                    ),
                    request_id=table.id_of(row),
                    arrival_ns=arrival_ns,
                    priority=priorities.get(table.slo_class[row], priorities[""]),
                    deadline_ns=deadline_ns,
                )
            except InputError as refusal:
                outcome, ended = refusal, ended + 1
            outcomes.append(outcome)
        if engine.has_unfinished:
            ended += len(engine.step().finished)
        elif len(outcomes) < len(table):
            clock.wait_until(int(table.arrival_ns[len(outcomes)]))
        if progress is not None:
            progress(ended, len(table))
    return outcomes
