"""The protocol between the app and what generates tokens: add, abort, results.

A backend is a real engine (`engine.cli.serve`) or a simulated fleet (`blis_py.serve.fleet`). All methods are
called in the event loop's thread, and so are the callbacks that receive results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fastapi import APIRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters and end conditions; names and meaning of vLLM's `SamplingParams`."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    structured_outputs: Mapping[str, Any] | None = None
    """One of `json`, `regex`, `choice`, `grammar`, `json_object`; None = unconstrained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One sequence to generate."""

    id: str
    prompt_ids: list[int]
    sampling: Sampling
    model: str = ""
    """One of the backend's; empty = its own."""
    priority: int | None = None
    """Smaller is more urgent; None = that of its class."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Request headers by lower-case name."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of an emitted token, and the most likely alternatives."""

    token: str
    logprob: float
    top: Sequence[tuple[str, float]] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Service of one sequence: times in s on the backend's clock, -1 = did not happen."""

    scheduled_s: float = -1.0
    cached_tokens: int = 0
    pod: str = ""
    """Name of the instance that served it, if it was not known when the sequence began."""


@dataclass(slots=True)
class Piece:
    """Part of the output of one sequence: a token, a block of tokens, its end, or several of these."""

    text: str = ""
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprob] | None = None
    finish_reason: str | None = None
    """`stop`, `length` or `abort` in the last piece; `error` with `error` and `status`."""
    stop_reason: int | str | None = None
    error: str = ""
    status: int = 500
    timing: Timing | None = None
    """In the last piece."""


Deliver = Callable[[Piece], None]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """State of one instance; counters are totals since its start."""

    index: int = 0
    """The instance's own for ever, as label of its metrics."""
    is_gone: bool = False
    """Whether it has left: only its counters mean something then."""

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    cache_config: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """Generator of tokens behind the server."""

    models: Sequence[str]
    """Names under which it is served; the first is its own."""
    max_model_len: int
    longest_token: int
    """Most characters that one token can stand for."""
    defaults: Mapping[str, Any]
    """Sampling defaults of the checkpoint's `generation_config`."""
    chat_template: str
    template_variables: Mapping[str, str]
    """Special tokens by name, for the template."""
    gauges: Mapping[str, Callable[[], float]]
    """Further metrics by full name."""

    async def start(self) -> None:
        """Prepare; `ready` holds afterwards."""
        ...

    async def stop(self) -> None:
        """End every sequence in progress with `abort`, and release everything."""
        ...

    @property
    def ready(self) -> bool: ...

    @property
    def failure(self) -> str:
        """The reason why it can serve no more; empty = it can."""
        ...

    @property
    def ends_with_failure(self) -> bool:
        """Whether the process ends with the failure: nothing in it can serve again."""
        ...

    def now_s(self) -> float:
        """The backend's clock."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def token_text(self, token: int) -> str: ...

    def add(self, submission: Submission, deliver: Deliver) -> str:
        """Begin a sequence; returns the name of the instance that serves it, empty if unknown.

        Args:
            deliver: receives its pieces in order. The last one has a finish reason, and always comes.

        Raises:
            ApiError: refused.
        """
        ...

    def abort(self, id: str) -> None:
        """End a sequence and free what it holds. Unknown and ended ones are ignored."""
        ...

    def load(self) -> Sequence[EngineLoad]:
        """The state of every instance."""
        ...

    def step_tokens(self, observe: Callable[[int], None]) -> None:
        """Call `observe` with the number of tokens of every step from now on."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes that no running sequence uses; whether this is possible."""
        ...

    def router(self) -> APIRouter | None:
        """Routes of its own."""
        ...
