"""Request life cycle of an engine, independent of the kind of step.

    add -> (core: waiting, running, ...) -> let go, failed or finished -> removed

The twin of `blis_py.core.lifecycle` on the engine's side of the clock. A kind of requests supplies which
prompts and parameters it takes, how a batch is run, and what it held on the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from numbers import Integral
from typing import Generic, NotRequired, TypedDict, TypeVar, Unpack

from blis_py.core.lifecycle import Lifecycle
from blis_py.core.request import Request, Status
from blis_py.core.token_keys import token_keys
from blis_py.errors import InputError
from engine.clock import Clock
from engine.grammar.state import Grammar
from engine.kernels.compilations import CompilationWatch
from engine.models.tokenizer import Tokenizer
from engine.output_processor import OutputProcessor
from engine.output_stream import OnDelta
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.steplog import StepRecorder

DEFAULT_PRIORITY = 1
_Scheduler = TypeVar("_Scheduler", bound=Lifecycle)
_Recorder = TypeVar("_Recorder", bound=StepRecorder)


class Parts(TypedDict, Generic[_Scheduler, _Recorder]):
    """Components of every engine: the arguments of `EngineLifecycle`."""

    scheduler: _Scheduler
    """Fresh scheduler, driven by this engine only."""
    recorder: _Recorder
    """Recorder of every step."""
    clock: Clock
    vocab_size: int
    """Vocabulary size: upper bound of token ids."""
    tokenizer: NotRequired[Tokenizer | None]
    compilations: NotRequired[CompilationWatch | None]
    """Kernel compilations on its behalf."""


class EngineLifecycle(Generic[_Scheduler, _Recorder]):
    """The requests of one engine, built from `Parts`."""

    request_kind: type[Request] = Request
    default_params = SamplingParams()

    def __init__(self, **parts: Unpack[Parts[_Scheduler, _Recorder]]) -> None:
        self.scheduler, self.recorder, self.clock = parts["scheduler"], parts["recorder"], parts["clock"]
        self.vocab_size, self.tokenizer = parts["vocab_size"], parts.get("tokenizer")
        self.compilations = parts.get("compilations") or CompilationWatch()
        self.outputs = OutputProcessor()
        self._added = 0
        self._sequences: dict[Request, Sequence] = {}
        self._by_id: dict[str, Sequence] = {}
        self._to_abort: list[Sequence] = []

    # -- what a kind of request supplies ---------------------------------------------------------------

    def _check_params(self, prompt_ids: list[int], params: SamplingParams) -> None:
        """Raise `InputError` for parameters that this kind of engine does not support."""
        raise NotImplementedError

    def _open_grammar(self, params: SamplingParams, stop_ids: frozenset[int]) -> Grammar | None:
        """The grammar of an output; None if unconstrained."""
        return None

    def _seed(self, params: SamplingParams, number: int) -> int:
        """Seed of a request's random numbers."""
        raise NotImplementedError

    def _held(self, sequence: Sequence) -> None:
        """Release a sequence's device state after it has left."""
        raise NotImplementedError

    def _forget(self) -> None:
        """Return to the initial state: fresh scheduler and recorder, no memory of requests."""
        raise NotImplementedError

    # -- requests come ---------------------------------------------------------------------------------

    def add_request(
        self,
        prompt: str | Ordered[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        arrival_ns: int | None = None,
        priority: int = DEFAULT_PRIORITY,
        deadline_ns: int = -1,
        on_delta: OnDelta | None = None,
    ) -> Sequence:
        """Add a request to the queue.

        Args:
            prompt: text, or token ids.
            arrival_ns: when the client sent it, by the engine's clock; `None` = now.
            priority: smaller is more urgent.
            deadline_ns: client timeout as a time on the engine's clock; -1 = never.
            on_delta: callback for the output of every step and for the end, which is always last, whatever
            the reason. It runs in a thread of its own and may call `abort_request`; if it raises, the request
            fails.

        Raises:
            InputError: a request that can never be served; no other request is affected.
            RuntimeError: the engine has been shut down.
        """
        params = params or self.default_params
        number = self._added
        self._added += 1
        request_id = request_id or f"request_{number}"
        if request_id in self._by_id:
            raise InputError("there is a request of this name", key="request_id", value=request_id)
        prompt_ids = self._tokenize(prompt)
        self._check(prompt_ids, params)
        stop_ids = self._stop_ids(params)
        grammar = self._open_grammar(params, stop_ids)
        request = self.request_kind(
            request_id,
            self.clock.now_ns() if arrival_ns is None else arrival_ns,
            len(prompt_ids),
            max_tokens=params.max_tokens or 0,
            priority=priority,
            deadline_ns=deadline_ns,
            block_keys=self._block_keys(prompt_ids),
            row=number,
            constrained=grammar is not None,
        )
        self._queue(request)
        sequence = Sequence(
            number,
            request,
            prompt_ids,
            params,
            seed=self._seed(params, number),
            stop_ids=stop_ids,
            tokenizer=self.tokenizer,
            prompt=prompt if isinstance(prompt, str) else None,
            grammar=grammar,
        )
        self.outputs.open(sequence, self.tokenizer, on_delta)
        return self._enter(sequence)

    def _block_keys(self, prompt_ids: list[int]) -> Ordered[bytes]:
        """Prefix-cache keys of its full blocks, if there is a prefix cache."""
        caching = self.scheduler.kv.prefix_caching
        return token_keys(prompt_ids, self.scheduler.config.block_size) if caching else ()

    def _queue(self, request: Request) -> None:
        refusal = self.scheduler.add(request)
        if refusal is not None:
            fix = "shorten the prompt or lower max_tokens, or give the engine a larger max_model_len"
            raise InputError(f"the request cannot be served: {refusal}", key=request.id, fix=fix)

    def _enter(self, sequence: Sequence) -> Sequence:
        """Register a sequence accepted by the scheduler."""
        request = sequence.request
        self._sequences[request] = self._by_id[request.id] = sequence
        self.recorder.added(sequence)
        return sequence

    def _tokenize(self, prompt: str | Ordered[int]) -> list[int]:
        if not isinstance(prompt, str):
            return _token_ids(prompt)
        if self.tokenizer is None:
            raise InputError("text needs a tokenizer", key="prompt", fix="give token ids")
        return self.tokenizer.encode(prompt)

    def _check(self, prompt_ids: list[int], params: SamplingParams) -> None:
        for key, ids in (("prompt", prompt_ids), ("stop_token_ids", params.stop_token_ids)):
            if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
                wrong = next(i for i in ids if not 0 <= i < self.vocab_size)
                raise InputError(f"the model has tokens 0 to {self.vocab_size - 1}", key=key, value=wrong)
        self._check_params(prompt_ids, params)
        if params.stop_strings and self.tokenizer is None:
            raise InputError("needs a tokenizer", key="stop", fix="use stop_token_ids")

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        eos = self.tokenizer.eos_ids if self.tokenizer is not None and not params.ignore_eos else frozenset()
        return eos | frozenset(params.stop_token_ids)

    # -- and go ----------------------------------------------------------------------------------------

    @property
    def has_unfinished(self) -> bool:
        """Whether there is work."""
        return bool(self._sequences)

    def abort_request(self, request_id: str) -> None:
        """Abort a request before the next step, which reports it. Unknown and ended requests are ignored."""
        sequence = self._by_id.get(request_id)
        if sequence is not None:
            self._to_abort.append(sequence)

    def reset(self) -> None:
        """Return to the initial state: empty prefix cache and step log, request numbers and clock at 0.

        Raises:
            RuntimeError: unfinished requests or steps.
        """
        if self._sequences:
            raise RuntimeError(f"{len(self._sequences)} requests are unfinished")
        self._forget()
        self._added = 0
        self.clock.restart()

    def let_go(self, now_ns: int | None = None) -> list[Sequence]:
        """Release timed-out and aborted requests; the first action of every step."""
        now_ns = self.clock.now_ns() if now_ns is None else now_ns
        gone = []
        if self.scheduler.first_deadline_ns <= now_ns:
            gone += [self._remove(request, now_ns) for request in self.scheduler.expire(now_ns)]
        if self.outputs.failed:
            self._note_failed_outputs()
        if self._to_abort:
            aborting, self._to_abort = self._to_abort, []
            for sequence in sorted(aborting, key=lambda s: s.index):
                if sequence.request.status is not Status.FINISHED:
                    self.scheduler.abort(sequence.request)
                    self.recorder.aborted(sequence, now_ns)
                    gone.append(self._remove(sequence.request, now_ns))
        return gone

    def _note_failed_outputs(self) -> None:
        """Mark requests with failed outputs for release."""
        failed = [self.outputs.failed.popleft() for _ in range(len(self.outputs.failed))]
        for sequence in self._sequences.values():
            if sequence.stream in failed:
                sequence.finish_reason, sequence.error = "error", sequence.output_error
                self._to_abort.append(sequence)

    def shutdown(self) -> None:
        """End all unfinished requests, then the output thread after its deliveries; final."""
        for request_id in list(self._by_id):
            self.abort_request(request_id)
        self.let_go()
        self.outputs.shutdown()

    def _abort_failed(self, requests: Iterable[Request], error: BaseException, now_ns: int) -> list[Sequence]:
        """End the requests of a failed forward, latest first: a later one may share blocks of an earlier
        one."""
        broken, failed = set(requests), []
        known = [*self.scheduler.waiting, *self.scheduler.running] if broken else []
        for request in [r for r in reversed(known) if r in broken]:
            self.scheduler.abort(request)
            sequence = self._sequences[request]
            sequence.finish_reason, sequence.error = "error", f"{type(error).__name__}: {error}"
            failed.append(self._remove(request, now_ns))
        return failed

    def _remove(self, request: Request, now_ns: int) -> Sequence:
        """Unregister a request released by the scheduler."""
        sequence = self._sequences.pop(request)
        del self._by_id[request.id]
        self._held(sequence)
        sequence.finished(now_ns)
        self.outputs.ended(sequence)
        return sequence


def _token_ids(prompt: Ordered[int]) -> list[int]:
    """A prompt as plain integers.

    Raises:
        InputError: not a list of whole numbers.
    """
    fix = "give text, or a list of token ids"
    if isinstance(prompt, bytes | bytearray | Mapping) or not isinstance(prompt, Iterable):
        raise InputError("is neither text nor token ids", key="prompt", value=prompt, fix=fix)
    ids = list(prompt)
    if set(map(type, ids)) <= {int}:
        return ids
    for place, item in enumerate(ids):
        if isinstance(item, bool) or not isinstance(item, Integral):
            raise InputError(f"{item!r} is no token id", key=f"prompt[{place}]", fix=fix)
    return [int(item) for item in ids]
