"""Offline inference: prompts in, texts out, at the end or as a stream.

llm = LLM("path/to/checkpoint")
for output in llm.generate(["Hello"], SamplingParams(temperature=0)):
    print(output.text)
for delta in llm.stream("Hello", SamplingParams(temperature=0)):
    print(delta.text, end="", flush=True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from blis_py.errors import InputError
from engine.build import build_engine
from engine.config import EngineConfig
from engine.engine import LLMEngine
from engine.output_stream import OnDelta, OutputDelta
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence as Running
from engine.sequence import TokenLogprobs

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """Result of one prompt."""

    request_id: str
    prompt: str | None
    """The prompt text; `None` for a prompt of token ids."""
    prompt_token_ids: list[int]
    token_ids: list[int]
    """Emitted tokens, including the final stop token."""
    text: str
    """Output text without the stop token or (by default) the stop string."""
    finish_reason: str
    """`stop`, `length`, `abort`, `timeout` or `error`."""
    stop_reason: int | str | None
    logprobs: list[TokenLogprobs] | None
    error: str | None
    """The error of the forward or of the text, if `finish_reason` is `error`."""
    cached_tokens: int
    """Prompt tokens found in the prefix cache."""


class LLM:
    """An engine for offline use.

    Args:
        model: as `EngineConfig.model`.
        settings: further fields of `EngineConfig`.

    Raises:
        InputError: an unknown setting, or one that cannot be used.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        known = EngineConfig.__dataclass_fields__
        for name in settings:
            if name not in known:
                raise InputError("unknown setting", key=name, fix=f"use one of {', '.join(known)}")
        self.engine: LLMEngine = build_engine(EngineConfig(model=model, **settings))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[RequestOutput]:
        """Outputs in the order of the prompts.

        Args:
            prompts: texts or lists of token ids; a single prompt is allowed in place of a list.
            params: for all prompts, or one each.
            progress: called with (requests ended, requests in all).

        Raises:
            InputError: a prompt that can never be served; then none is run.
        """
        return generate(self.engine, *_paired(prompts, params), progress)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Iterator[OutputDelta]:
        """Stream of deltas: the output of every step for each prompt, and its end.

        `request_id` identifies the prompt; ids count up in the order of the prompts. Closing the iterator
        aborts the requests.

        Args:
            prompts, params: as of `generate`.

        Raises:
            InputError: a prompt that can never be served; then none is run.
        """
        return stream(self.engine, *_paired(prompts, params))

    def shutdown(self) -> None:
        """Abort unfinished requests and stop the engine's threads; final."""
        self.engine.shutdown()


class Output(Protocol):
    """Output of a step."""

    finished: list[Running]


class Engine(Protocol):
    """Interface of offline use to an engine of any kind."""

    def add_request(
        self, prompt: Prompt, params: SamplingParams, /, *, on_delta: OnDelta | None = None
    ) -> Running: ...

    def step(self) -> Output: ...

    @property
    def has_unfinished(self) -> bool: ...

    def abort_request(self, request_id: str) -> None: ...

    def let_go(self) -> list[Running]: ...


def generate(
    engine: Engine,
    prompts: Sequence[Prompt],
    params: Sequence[SamplingParams],
    progress: Callable[[int, int], None] | None = None,
) -> list[RequestOutput]:
    """Run all prompts on an engine until the last is done."""
    sequences: list[Running] = []
    try:
        for prompt, own in zip(prompts, params, strict=True):
            sequences.append(engine.add_request(prompt, own))
        ended = 0
        while engine.has_unfinished:
            ended += len(engine.step().finished)
            if progress is not None:
                progress(ended, len(prompts))
    except BaseException:
        for sequence in sequences:
            engine.abort_request(sequence.request.id)
        engine.let_go()
        raise
    return [output_of(sequence) for sequence in sequences]


def stream(
    engine: Engine, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
) -> Iterator[OutputDelta]:
    """Run all prompts on an engine, yielding their deltas in the meantime."""
    deltas: SimpleQueue[OutputDelta] = SimpleQueue()
    sequences: list[Running] = []
    unfinished = len(prompts)
    try:
        for prompt, own in zip(prompts, params, strict=True):
            sequences.append(engine.add_request(prompt, own, on_delta=deltas.put))
        while unfinished:
            if engine.has_unfinished:
                engine.step()
            else:
                for sequence in sequences:
                    sequence.text()  # the output thread has delivered everything
            while not deltas.empty():
                delta = deltas.get()
                unfinished -= delta.finish_reason is not None
                yield delta
    finally:
        for sequence in sequences:
            engine.abort_request(sequence.request.id)
        engine.let_go()


def output_of(sequence: Running) -> RequestOutput:
    """The outcome of a finished sequence."""
    assert sequence.finish_reason is not None, "it has not ended"
    text, failed = sequence.text(), sequence.output_error  # in this order: `text` may wait
    return RequestOutput(
        request_id=sequence.request.id,
        prompt=sequence.prompt,
        prompt_token_ids=sequence.prompt_ids.tolist(),
        token_ids=list(sequence.output_ids),
        text=text,
        finish_reason=sequence.finish_reason if failed is None else "error",
        stop_reason=sequence.stop_reason if failed is None else None,
        logprobs=sequence.logprobs if sequence.params.logprobs is not None else None,
        error=sequence.error or failed,
        cached_tokens=max(sequence.request.cached_tokens, 0),
    )


def _paired(
    prompts: Prompt | Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> tuple[list[Prompt], Sequence[SamplingParams]]:
    """Each prompt with its sampling parameters."""
    several = _several(prompts)
    if params is None or isinstance(params, SamplingParams):
        params = [params or SamplingParams()] * len(several)
    if len(params) != len(several):
        raise InputError(
            f"{len(several)} prompts, {len(params)} sampling parameters", fix="give one for each prompt"
        )
    return several, params


def _several(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        fix = "give texts, or lists of token ids"
        raise InputError("are neither texts nor token ids", key="prompts", value=prompts, fix=fix)
    ids = [item for item in prompts if isinstance(item, int)]
    texts = [item for item in prompts if not isinstance(item, int)]
    if ids and texts:
        raise InputError("token ids among prompts", value=ids[0], fix="give texts, or lists of token ids")
    return [ids] if ids else texts
