"""The real engine as a backend of the app.

The engine's loop runs in a thread of its own: commands reach it by a queue, which it empties before every
step, and results leave it by the output thread, which hands them to the event loop. No client can delay a
step.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import torch

from blis_py.errors import InputError
from blis_py.serve.backend import Deliver, EngineLoad, Piece, Sampling, Submission, Timing, TokenLogprob
from blis_py.serve.errors import INTERNAL, ApiError
from blis_py.serve.killable import Killable, LimitExceeded
from blis_py.serve.memory import return_freed
from engine.build import pick_device
from engine.cli.serving.checkpoint import CheckpointWords
from engine.cli.serving.recorder import ForgetfulLog, ServingRecorder, ServingRounds
from engine.engine import LLMEngine
from engine.grammar.compiler import texts_compiler
from engine.grammar.params import StructuredOutputsParams
from engine.models.tokenizer import ByteTokenizer, JsonTokenizer, Tokenizer
from engine.output_stream import OutputDelta
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence as Running

if TYPE_CHECKING:
    from fastapi import APIRouter

    from engine.kinds import Engine

log = logging.getLogger("blis.serve")
_IDLE_S = 0.5
"""Interval at which an idle engine looks whether it is to stop."""
_SWITCH_S = 1e-4
"""Python's switch interval while it serves: the longest wait of one thread for another."""
_FAILURES, _PROBE_S = 3, 2.0
"""Failed requests one after another from which it is not ready, and the time between probes from then on."""
_REMEMBERED = 256
_THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
"""Environment variables with the number of torch's threads."""
_UNKNOWN_TOKEN = 256
"""Most characters of a token of other tokenizers."""
_SAMPLING = tuple(field.name for field in fields(Sampling) if field.name != "structured_outputs")


@dataclass(slots=True)
class _EngineRequest:
    """A sequence in the engine."""

    submission: Submission
    deliver: Deliver
    name: str
    """In the engine, where names are not used twice."""
    sequence: Running | None = None
    delivered: int = 0
    """Tokens delivered so far."""
    over: bool = False


class EngineBackend:
    """An engine in a thread; a `Backend`.

    Args:
        build: makes the engine, in its thread.
        models: names under which it is served.
        words: of the checkpoint.
        keep_log: keep the log of all steps, whose memory grows.
    """

    def __init__(
        self,
        build: Callable[[], Engine],
        models: Sequence[str],
        words: CheckpointWords,
        *,
        keep_log: bool = False,
    ) -> None:
        self.models, self.chat_template = models, words.template
        self.defaults, self.template_variables = words.defaults, words.special
        self.max_model_len, self.longest_token = 0, 1
        self.gauges: Mapping[str, Callable[[], float]] = {}
        self.engine: Engine | None = None
        self._build, self._keep_log = build, keep_log
        self._commands: SimpleQueue[Callable[[Engine], None]] = SimpleQueue()
        self._requests: dict[str, _EngineRequest] = {}
        self._arrived: deque[tuple[_EngineRequest, OutputDelta]] = deque()
        self._number = 0
        self._notified = False
        self._stopping = False
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="engine", daemon=True)
        self._grammars = ThreadPoolExecutor(1, "grammars")
        self._compiler: Killable | None = None
        self._refused: dict[StructuredOutputsParams, str] = {}
        """Forms whose grammars exceeded the limits, and why."""
        self._failed, self._switch_s = 0, sys.getswitchinterval()

    # -- the life of the server ----------------------------------------------------------------------

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started: asyncio.Future[None] = self._loop.create_future()
        sys.setswitchinterval(_SWITCH_S)
        self._thread.start()
        await self._started

    async def stop(self) -> None:
        self._stopping = True
        sys.setswitchinterval(self._switch_s)
        self._grammars.shutdown(wait=False, cancel_futures=True)
        if self._compiler is not None:
            self._compiler.close()
        while self._thread.is_alive():
            await asyncio.sleep(0.01)
        self._flush()
        self._fail_all("the server is stopping", 503)

    @property
    def ready(self) -> bool:
        return self.engine is not None and not self._stopping and self._failed < _FAILURES

    @property
    def ends_with_failure(self) -> bool:
        return True

    @property
    def failure(self) -> str:
        return "" if self._error is None else str(self._error)

    def now_s(self) -> float:
        return 0.0 if self.engine is None else self.engine.clock.now_ns() / 1e9

    # -- the engine's thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            engine = self._build()
            if isinstance(engine, LLMEngine):
                engine.recorder = ServingRecorder(engine.recorder.meta, self._keep_log)
            else:
                engine.recorder = ServingRounds(engine.recorder.meta, self._keep_log)
                if not self._keep_log:
                    engine.log = ForgetfulLog()
        except BaseException as error:
            self._loop.call_soon_threadsafe(self._started.set_exception, error)
            return
        self.engine = engine
        self.max_model_len = engine.scheduler.config.max_model_len
        self.longest_token = _longest_token(engine.tokenizer)
        self._loop.call_soon_threadsafe(self._started.set_result, None)
        try:
            self._serve(engine)
            engine.shutdown()
        except BaseException as error:
            log.critical("the engine has failed", exc_info=error)
            self._error = error
            self._loop.call_soon_threadsafe(self._fail_all, INTERNAL, 500)

    def _serve(self, engine: Engine) -> None:
        """The loop: commands, then a step, which begins with them."""
        while not self._stopping:
            start_ns = self._obey(engine)
            if engine.has_unfinished:
                engine.step(start_ns)

    def _obey(self, engine: Engine) -> int:
        """Carry out all commands; an idle engine waits for one. Returns when it began to."""
        commands, now_ns = self._commands, engine.clock.now_ns
        start_ns = now_ns()
        with suppress(Empty):
            if not engine.has_unfinished:
                command = commands.get(timeout=_IDLE_S)
                start_ns = now_ns()
                command(engine)
            while True:
                commands.get_nowait()(engine)
        return start_ns

    def _begin(self, entry: _EngineRequest, params: SamplingParams, engine: Engine) -> None:
        if entry.over:
            return
        submission = entry.submission
        more = {} if submission.priority is None else {"priority": submission.priority}
        try:
            entry.sequence = engine.add_request(
                submission.prompt_ids,
                params,
                request_id=entry.name,
                on_delta=lambda delta: self._on_delta(entry, delta),
                **more,
            )
        except InputError as error:
            self._refuse(entry, error)

    def _on_delta(self, entry: _EngineRequest, delta: OutputDelta) -> None:
        """Queue a delta; called in the output thread."""
        self._arrived.append((entry, delta))
        if not self._notified:
            self._notified = True
            self._loop.call_soon_threadsafe(self._flush)

    # -- the event loop's thread -----------------------------------------------------------------------

    def _flush(self) -> None:
        self._notified = False
        arrived = self._arrived
        while arrived:
            entry, delta = arrived.popleft()
            if entry.over:
                continue
            piece = _piece(entry, delta, self.token_text)
            if piece.finish_reason is not None:
                self._forget(entry)
                if piece.finish_reason == "error":
                    log.error("request %s has failed: %s", entry.submission.id, delta.error)
                    self._note_failure()
            if piece.token_ids:
                self._failed = 0
            entry.deliver(piece)

    def _note_failure(self) -> None:
        self._failed += 1
        if self._failed == _FAILURES:
            self._loop.call_later(_PROBE_S, self._probe)

    def _probe(self) -> None:
        """Try a token after failures, again and again until it comes: then requests are answered again."""
        if self._failed < _FAILURES or self._stopping or self._error is not None:
            return
        sampling = Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)
        probe = Submission(id=f"probe-{self._number}", prompt_ids=[0], sampling=sampling)
        self.add(probe, lambda piece: None)
        self._loop.call_later(_PROBE_S, self._probe)

    def _refuse(self, entry: _EngineRequest, error: InputError) -> None:
        def end() -> None:
            if not entry.over:
                self._forget(entry)
                entry.deliver(Piece(finish_reason="error", error=str(error), status=400))

        self._loop.call_soon_threadsafe(end)

    def _fail_all(self, why: str, status: int) -> None:
        for entry in list(self._requests.values()):
            self._forget(entry)
            entry.deliver(Piece(finish_reason="error", error=why, status=status))

    def _forget(self, entry: _EngineRequest) -> None:
        entry.over = True
        self._requests.pop(entry.submission.id, None)

    def add(self, submission: Submission, deliver: Deliver) -> str:
        """Send a request to the engine.

        Raises:
            ApiError: 400: the id is in progress, or the request does not fit the engine.
        """
        if submission.id in self._requests:
            raise ApiError(400, "a request of this id is in progress", "X-Request-Id")
        try:
            params = _params(submission.sampling, self._autoregressive)
        except InputError as error:
            raise ApiError(400, str(error), error.key) from error
        self._number += 1
        entry = self._requests[submission.id] = _EngineRequest(
            submission, deliver, f"{submission.id}-{self._number}"
        )
        if params.structured_outputs is None:
            self._commands.put(lambda engine: self._begin(entry, params, engine))
        else:
            self._grammars.submit(self._compile, entry, params)
        return ""

    def _compile(self, entry: _EngineRequest, params: SamplingParams) -> None:
        """Compile a grammar beside the engine's loop, in a process that can be killed, then begin."""
        engine, form = self.engine, params.structured_outputs
        assert isinstance(form, StructuredOutputsParams)
        try:
            if isinstance(engine, LLMEngine) and not entry.over and not engine.grammars.has(form):
                text = self._compiled(engine, form)
                engine.grammars.learn(form, text)
                return_freed(len(text))
        except InputError as error:
            self._refuse(entry, error)
            return
        except Exception as error:
            log.exception("a grammar does not compile")
            self._refuse(entry, InputError(f"does not compile: {error}", key="response_format"))
            return
        self._commands.put(lambda engine: self._begin(entry, params, engine))

    def _compiled(self, engine: LLMEngine, form: StructuredOutputsParams) -> str:
        """
        Raises:
            InputError: a grammar that does not compile, or not within the limits.
        """
        if form not in self._refused:
            self._compiler = self._compiler or Killable(texts_compiler, engine.grammars.vocabulary)
            try:
                return str(self._compiler.run(form))
            except LimitExceeded as error:
                if len(self._refused) >= _REMEMBERED:
                    del self._refused[next(iter(self._refused))]
                self._refused[form] = str(error)
        raise InputError(f"compilation {self._refused[form]}", key=f"structured_outputs.{form.form}")

    def abort(self, id: str) -> None:
        entry = self._requests.get(id)
        if entry is not None:
            self._forget(entry)
            self._commands.put(lambda engine: engine.abort_request(entry.name))

    # -- text and state --------------------------------------------------------------------------------

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text.

        Raises:
            ApiError: 400: the tokenizer refuses the text.
        """
        assert self.engine is not None
        assert self.engine.tokenizer is not None
        try:
            return self.engine.tokenizer.encode(text, add_special_tokens)
        except InputError as error:
            raise ApiError(400, str(error), error.key) from error

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids.

        Raises:
            ApiError: 400: there is no token of an id.
        """
        assert self.engine is not None
        assert self.engine.tokenizer is not None
        wrong = [token for token in ids if not 0 <= token < self.engine.vocab_size]
        if wrong:
            raise ApiError(400, f"there is no token {wrong[0]}", "tokens")
        return self.engine.tokenizer.decode(ids)

    def token_text(self, token: int) -> str:
        return self.decode([token])

    @property
    def _autoregressive(self) -> bool:
        return isinstance(self.engine, LLMEngine)

    def load(self) -> Sequence[EngineLoad]:
        if self.engine is None:
            return ()
        scheduler = self.engine.scheduler
        pool, counters = scheduler.kv.pool, scheduler.counters
        return (
            EngineLoad(
                running=len(scheduler.running),
                waiting=len(scheduler.waiting) + self._commands.qsize(),
                kv_usage=pool.in_use / pool.total,
                prefix_queried_tokens=counters.prefix_queried_tokens,
                prefix_hit_tokens=counters.prefix_hit_tokens,
                preemptions=counters.preemptions,
                cache_config={
                    "block_size": str(scheduler.config.block_size),
                    "num_gpu_blocks": str(scheduler.config.num_kv_blocks),
                },
            ),
        )

    def step_tokens(self, observe: Callable[[int], None]) -> None:
        recorder = None if self.engine is None else self.engine.recorder
        if isinstance(recorder, ServingRecorder):
            recorder.on_step = observe

    def reset_prefix_cache(self) -> bool:
        self._commands.put(lambda engine: engine.scheduler.kv.forget_unused())
        return True

    def router(self) -> APIRouter | None:
        return None


def _longest_token(tokenizer: Tokenizer | None) -> int:
    """Most characters of a token."""
    if isinstance(tokenizer, JsonTokenizer):
        return max(map(len, tokenizer.vocabulary()), default=1)
    return 1 if isinstance(tokenizer, ByteTokenizer) else _UNKNOWN_TOKEN


def _params(sampling: Sampling, autoregressive: bool) -> SamplingParams:
    """Sampling parameters of the engine; what is absent has its default.

    Raises:
        InputError: a value out of range.
    """
    given: dict[str, Any] = {name: getattr(sampling, name) for name in _SAMPLING}
    given = {name: value for name, value in given.items() if value is not None or name == "max_tokens"}
    if not autoregressive:
        given.setdefault("temperature", 0.0)
    if sampling.structured_outputs is not None:
        given["structured_outputs"] = StructuredOutputsParams(**sampling.structured_outputs)
    return SamplingParams(**given)


def _piece(entry: _EngineRequest, delta: OutputDelta, name: Callable[[int], str]) -> Piece:
    sequence = entry.sequence
    piece = Piece(delta.text, delta.token_ids)
    start, entry.delivered = entry.delivered, entry.delivered + len(delta.token_ids)
    if entry.submission.sampling.logprobs is not None and sequence is not None and delta.token_ids:
        piece.logprobs = _logprobs(sequence, start, entry.delivered, name)
    if delta.finish_reason is not None:
        piece.finish_reason, piece.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.finish_reason == "error":
            piece.error, piece.status = INTERNAL, 500
        if sequence is not None:
            request = sequence.request
            piece.timing = Timing(request.scheduled_ns / 1e9, max(request.cached_tokens, 0))
    return piece


def _logprobs(sequence: Running, start: int, end: int, name: Callable[[int], str]) -> list[TokenLogprob]:
    rows = []
    for token, logprobs in zip(sequence.output_ids[start:end], sequence.logprobs[start:end], strict=False):
        alternatives = sorted(logprobs.items(), key=lambda one: -one[1])[: sequence.params.logprobs or 0]
        top = [(name(other), value) for other, value in alternatives]
        rows.append(TokenLogprob(name(token), logprobs[token], top))
    return rows


def set_threads(device: str) -> None:
    """One thread for torch on a CPU, unless the environment sets their number: more of them wait busily."""
    if pick_device(device).type == "cpu" and not _THREADS & os.environ.keys():
        torch.set_num_threads(1)
