"""Scenarios and traces: what is exchanged, as JSON, between the command and the processes of the engines."""

from __future__ import annotations

from typing import Any, TypedDict

Run = tuple[int, int]
"""(segment, tokens): the first tokens of a text; equal segments hold equal tokens."""
EOS_TOKEN = 2
_SEGMENT_TOKENS = 100_000
_FIRST_TOKEN = 10
ANSWERS = 10_000
"""Segments from this one on are answers: that of the request with the same number."""


class RequestSpec(TypedDict, total=False):
    """A request of a scenario."""

    id: str
    step: int
    """Iteration before which it arrives; with `after`, counted from the one after that request's end."""
    after: str
    """The request whose conversation it continues; absent = none. If that is aborted it never arrives."""
    arrival: float
    """Arrival time, in iterations and counted as `step`; ties are broken by id."""
    prompt: list[list[int]]
    """Runs, see `Run`."""
    answer: int
    """Segment of its answer."""
    shared_tokens: int
    """Tokens of its prompt that other requests may have, too."""
    output_tokens: int
    """Tokens after which the model stops, by an end of sequence if the limit is larger."""
    max_tokens: int
    """Limit of the client; 0 = none but the longest sequence."""
    priority: int
    grammar: bool
    """Whether a grammar constrains its answer; absent = no."""
    abort_step: int
    """Iteration before which the client aborts it, counted as `step`; absent = never."""


class Scenario(TypedDict, total=False):
    """Settings of an engine, under vLLM's names, and the requests it receives."""

    block_size: int
    num_kv_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    policy: str
    async_scheduling: bool
    enable_prefix_caching: bool
    max_model_len: int
    known_keys: str
    """Content keys that our side is given: of `all` tokens, of the `prompt`, or of its `shared` part."""
    max_steps: int
    """Iterations after which a scenario is cut."""
    settings: dict[str, Any]
    """Further settings of the engine, by its own names."""
    ours: dict[str, Any]
    """Further settings of our scheduler, over the preset's."""
    requests: list[RequestSpec]


class StepTrace(TypedDict, total=False):
    """What a scheduler decided in one iteration."""

    tokens: dict[str, int]
    """Tokens that each request computes."""
    preempted: list[str]
    cached: dict[str, int]
    """Tokens found in the cache by requests admitted for the first time."""
    again: dict[str, int]
    """The same for requests admitted after a preemption."""
    blocks: int
    """Blocks in use once the step is planned."""
    finished: dict[str, int]
    """Output tokens of the requests whose end became known in the iteration."""


class Failure(TypedDict):
    """A scenario that did not run to its end."""

    error: str
    where: str


Trace = list[StepTrace] | Failure


class Arrivals:
    """Requests of a scenario that are still to come.

    Args:
        scenario: not changed.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._coming: list[RequestSpec] = []
        self._then: dict[str, list[RequestSpec]] = {}
        self._aborts: dict[str, int] = {}
        for spec in scenario["requests"]:
            if "after" in spec:
                self._then.setdefault(spec["after"], []).append(spec)
            else:
                self._expect(spec, 0)

    def __bool__(self) -> bool:
        return bool(self._coming)

    def _expect(self, spec: RequestSpec, since: int) -> None:
        """Let a request come, its times counted from an iteration."""
        spec = spec.copy()
        spec["step"] += since
        spec["arrival"] += since
        if "abort_step" in spec:
            self._aborts[spec["id"]] = spec["abort_step"] + since
        self._coming.append(spec)
        self._coming.sort(key=lambda each: (each["step"], each["id"]))

    def ended(self, name: str, iteration: int) -> None:
        """Note that a request has its whole answer."""
        for spec in self._then.pop(name, ()):
            self._expect(spec, iteration + 1)

    def arriving(self, iteration: int) -> list[RequestSpec]:
        """Requests that arrive before an iteration."""
        count = sum(spec["step"] <= iteration for spec in self._coming)
        arriving, self._coming = self._coming[:count], self._coming[count:]
        return arriving

    def aborted(self, iteration: int) -> list[str]:
        """Requests that are aborted before an iteration, after those that arrive."""
        names = [name for name, step in self._aborts.items() if step <= iteration]
        for name in names:
            del self._aborts[name]
        return names


def token_ids(runs: list[list[int]]) -> list[int]:
    """The tokens of a text."""
    return [
        _FIRST_TOKEN + segment * _SEGMENT_TOKENS + index for segment, count in runs for index in range(count)
    ]


def prompt_tokens(request: RequestSpec) -> int:
    """Length of a request's prompt."""
    return sum(count for _, count in request["prompt"])


def answer_limit(scenario: Scenario, request: RequestSpec) -> int:
    """Most output tokens of a request."""
    return request["max_tokens"] or scenario["max_model_len"] - prompt_tokens(request)


def answer_token(scenario: Scenario, request: RequestSpec, position: int) -> int:
    """Output token number `position` of a request, counted from 0."""
    if position + 1 == request["output_tokens"] < answer_limit(scenario, request):
        return EOS_TOKEN
    return _FIRST_TOKEN + request["answer"] * _SEGMENT_TOKENS + position


def accepted_drafts(request: RequestSpec, position: int, drafts: int) -> int:
    """Drafts that a step accepts of those proposed behind output token number `position`."""
    accepted = (request["answer"] * 7 + position * 5 + position // 3) % (drafts + 1)
    return min(accepted, valid_drafts(request, position, drafts))


def valid_drafts(request: RequestSpec, position: int, drafts: int) -> int:
    """Drafts behind output token number `position`, from the first on, that the request's grammar allows."""
    if not request.get("grammar"):
        return drafts
    return (request["answer"] * 3 + position * 2 + position // 5) % (drafts + 1)
