"""The engine's loop: the scheduler core on a real clock, with a forward pass in the middle.

    schedule -> execute (prepare, launch) -> sample -> finish

It is the twin of `blis_py.cluster.instance`: the same `Scheduler` forms the same batches there, and a
latency model says how long they take.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field

import numpy as np
import torch

from blis_py.core.features import StepFeatures
from blis_py.core.request import Request, Status
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from blis_py.core.token_keys import token_keys
from blis_py.errors import InputError
from engine.batch import Ints
from engine.clock import Clock
from engine.executor import Batch, Executor, end_of
from engine.grammar.compiler import Grammars
from engine.grammar.masks import BatchMask, Masks, emitted
from engine.kernels.compilations import Watch
from engine.models.tokenizer import Tokenizer
from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.sequence import Sequence
from engine.steplog import StepRecorder
from engine.timing import StepTimer

DEFAULT_PRIORITY = 1
NOTHING: Ints = np.zeros(0, dtype=np.int64)
NO_STOP: frozenset[int] = frozenset()


@dataclass(slots=True)
class StepOutput:
    """What one call of `LLMEngine.step` brought."""

    sequences: Ordered[Sequence] = ()
    """Those that emitted a token."""
    tokens: Ordered[int] = ()
    """Their tokens."""
    finished: list[Sequence] = field(default_factory=list)
    """Those that are over, for whatever reason."""


class LLMEngine:
    """Requests in, tokens out, a step at a time. `engine.build` makes one from a config.

    Args:
        scheduler: fresh; the engine is its only driver.
        executor: runs the model.
        sampler: chooses tokens.
        recorder: gets a row for every step.
        vocab_size: token ids are below it.
        seed: from it and its number every request without a seed gets one.
        compilations: kernels that were compiled for it.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        executor: Executor,
        sampler: Sampler,
        recorder: StepRecorder,
        clock: Clock,
        timer: StepTimer,
        vocab_size: int,
        tokenizer: Tokenizer | None = None,
        seed: int = 0,
        compilations: Watch | None = None,
    ) -> None:
        self.compilations = compilations or Watch()
        self.scheduler = scheduler
        self.executor = executor
        self.sampler = sampler
        self.recorder = recorder
        self.clock = clock
        self.tokenizer = tokenizer
        self.timer = timer
        self.vocab_size = vocab_size
        self.grammars = Grammars(tokenizer, vocab_size)
        self._masks = Masks(vocab_size, clock)
        self._mask: BatchMask | None = None
        """Of the step under way, if any of its rows is constrained."""
        self._seed = seed
        self._added = 0
        self._sequences: dict[Request, Sequence] = {}
        self._by_id: dict[str, Sequence] = {}
        self._to_abort: list[Sequence] = []
        self._inference = torch.inference_mode()
        self._decoding: list[Request] = []
        """Those that decode in the current step. The same object as long as they are the same."""
        self._calm = False
        """Whether nobody has come or gone since that list was made."""

    # -- requests --------------------------------------------------------------------------------

    def add_request(
        self,
        prompt: str | Ordered[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        arrival_ns: int | None = None,
        priority: int = DEFAULT_PRIORITY,
        deadline_ns: int = -1,
    ) -> Sequence:
        """Puts a request into the queue.

        Args:
            prompt: text, or token ids.
            arrival_ns: when the client sent it, by the engine's clock; `None` = now.
            priority: smaller is more urgent.
            deadline_ns: when the client gives up, by the engine's clock; -1 = never.

        Raises:
            InputError: it can never be served. The engine is as it was before.
        """
        params = params or SamplingParams()
        number = self._added
        self._added += 1
        request_id = request_id or f"request_{number}"
        if request_id in self._by_id:
            raise InputError("there is a request of this name", key="request_id", value=request_id)
        prompt_ids = self._tokenize(prompt)
        self._check(prompt_ids, params)
        stop_ids = self._stop_ids(params)
        grammar = self.grammars.open(params, stop_ids)
        scheduler = self.scheduler
        caching = scheduler.kv.prefix_caching
        request = Request(
            request_id,
            self.clock.now_ns() if arrival_ns is None else arrival_ns,
            len(prompt_ids),
            max_tokens=params.max_tokens or 0,
            priority=priority,
            deadline_ns=deadline_ns,
            block_keys=token_keys(prompt_ids, scheduler.config.block_size) if caching else (),
            row=number,
        )
        refusal = scheduler.add(request)
        if refusal is not None:
            fix = "shorten the prompt or lower max_tokens, or give the engine a larger max_model_len"
            raise InputError(f"the request cannot be served: {refusal}", key=request_id, fix=fix)
        text = prompt if isinstance(prompt, str) else None
        sequence = Sequence(
            number,
            request,
            prompt_ids,
            params,
            seed=_mix(self._seed, number) if params.seed is None else params.seed,
            stop_ids=stop_ids,
            tokenizer=self.tokenizer,
            prompt=text,
            grammar=grammar,
        )
        return self._enter(sequence)

    def place_request(self, prompt: Ints, params: SamplingParams) -> Sequence:
        """A request that runs from the next step on, all of its prompt but the last token in the cache.

        Nobody has computed these tokens: their pages hold whatever they held. For whoever measures steps; to
        be called between steps.

        Args:
            prompt: neither looked at nor named, so nobody shares its pages.
            params: with a seed, and no stop tokens of its own.

        Raises:
            RuntimeError: there is no room; see `Scheduler.place`.
        """
        number = self._added
        request = Request(f"request_{number}", self.clock.now_ns(), len(prompt), row=number)
        self.scheduler.place(request, len(prompt) - 1)
        self._added += 1
        return self._enter(Sequence(number, request, prompt, params, params.seed or 0, NO_STOP, None))

    def _enter(self, sequence: Sequence) -> Sequence:
        """The scheduler has taken it, so does the engine."""
        request = sequence.request
        self._sequences[request] = self._by_id[request.id] = sequence
        self.recorder.added(sequence)
        return sequence

    def abort_request(self, request_id: str) -> None:
        """Ends a request before the next step; the step reports it. Unknown and ended ones are left alone."""
        sequence = self._by_id.get(request_id)
        if sequence is not None:
            self._to_abort.append(sequence)

    def reset(self) -> None:
        """As if just built: an empty prefix cache, an empty step log, request numbers and the clock at 0.

        Raises:
            RuntimeError: requests are unfinished.
        """
        if self._sequences:
            raise RuntimeError(f"{len(self._sequences)} requests are unfinished")
        self.scheduler = Scheduler(self.scheduler.config, track_longest=True)
        self.recorder = StepRecorder(self.recorder.meta)
        self._added, self._decoding = 0, []
        self.clock.restart()

    @property
    def has_unfinished(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._sequences)

    def _tokenize(self, prompt: str | Ordered[int]) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise InputError("text needs a tokenizer", key="prompt", fix="give token ids")
        return self.tokenizer.encode(prompt)

    def _check(self, prompt_ids: list[int], params: SamplingParams) -> None:
        if not prompt_ids:
            raise InputError("is empty", key="prompt", fix="give at least one token")
        for key, ids in (("prompt", prompt_ids), ("stop_token_ids", params.stop_token_ids)):
            if ids and not (min(ids) >= 0 and max(ids) < self.vocab_size):
                wrong = next(i for i in ids if not 0 <= i < self.vocab_size)
                raise InputError(f"the model has tokens 0 to {self.vocab_size - 1}", key=key, value=wrong)
        if params.stop_strings and self.tokenizer is None:
            raise InputError("needs a tokenizer", key="stop", fix="use stop_token_ids")

    def _stop_ids(self, params: SamplingParams) -> frozenset[int]:
        eos = self.tokenizer.eos_ids if self.tokenizer is not None and not params.ignore_eos else frozenset()
        return eos | frozenset(params.stop_token_ids)

    # -- the loop ----------------------------------------------------------------------------------

    def step(self, now_ns: int | None = None) -> StepOutput:
        """Schedule, execute, sample, finish: one forward, or nothing if there is nothing to compute.

        An error on the way ends the requests of the step, not the engine.

        Args:
            now_ns: when the step began, where its caller had work to do first, such as bringing in what
                had arrived by then; `None` = now.
        """
        now_ns = self.clock.now_ns() if now_ns is None else now_ns
        gone = self.let_go(now_ns)
        step = self.schedule(now_ns)
        if step is None:
            return StepOutput(finished=gone)
        try:
            with self._inference:
                batch = self.prepare(step)
                tokens = self.sample(batch, *self.launch(batch))
        except BaseException as error:
            failed = self._fail(step, error)
            if isinstance(error, Exception):
                return StepOutput(finished=gone + failed)
            raise
        listed: list[int] = tokens.tolist()
        finished = self.finish(step, batch, listed)
        self.clock.between_steps()
        return StepOutput(*emitted(batch.emitters.sequences, listed), gone + finished)

    def schedule(self, now_ns: int) -> Step | None:
        """What to compute next, or None."""
        self.timer.start(now_ns)
        self._mask = None
        self.recorder.boundary(now_ns)
        step = self.scheduler.schedule(now_ns)
        if step is not None:
            self._update_decoding(step)
            self.recorder.planned(step, self.scheduler, self._decoding)
        self.timer.lap()
        return step

    def _update_decoding(self, step: Step) -> None:
        """Looks through the running requests only where something has come or gone.

        Where nobody has, and as many decode as before, they are the same: always the first in running order.
        """
        calm = not (step.prefills or step.preempted)
        if not (calm and self._calm and step.features.decode_seqs == len(self._decoding)):
            decoding = list(self.scheduler.decoding)
            if decoding != self._decoding:
                self._decoding = decoding
        self._calm = calm

    def prepare(self, step: Step) -> Batch:
        """The tensors of the step, on the host."""
        batch = self.executor.prepare(step, self._decoding, self.scheduler, self._sequences)
        self.timer.lap()
        return batch

    def launch(self, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Starts the forward; on CUDA it is not over when this returns.

        Returns:
            Logits and positions of the emitting rows; no logits where nobody emits.
        """
        self.clock.computing(len(batch.layout.device.input_ids))
        inputs = self.executor.send(batch)
        self.timer.gpu_begin()
        logits, positions = self.executor.launch(batch, inputs)
        self.timer.lap()
        return logits, positions

    def sample(self, batch: Batch, logits: torch.Tensor | None, positions: torch.Tensor) -> Ints:
        """One token for each emitting sequence; waits for the device."""
        if logits is None:
            self.timer.gpu_end()
            tokens = NOTHING
        else:
            mask = self._mask = self._masks.launched(batch.emitters, logits.device)
            bitmask = mask.fill() if mask is not None else None
            sampled = self.sampler.launch(logits, positions, batch.emitters, bitmask)
            self.executor.keep_tokens(batch, sampled if bitmask is None else sampled.clamp_min(0))
            self.timer.gpu_end()
            tokens = sampled.cpu().numpy()
            self.executor.note_tokens(batch.emitters, tokens)
        self.timer.lap()
        return tokens

    def finish(self, step: Step, batch: Batch, tokens: list[int]) -> list[Sequence]:
        """Tells the scheduler what came of the step; returns the sequences that are over."""
        emitters, tick = batch.emitters, self.scheduler.tick
        sequences = emitters.sequences
        for output, token in zip(emitters.outputs, tokens, strict=True):
            output.append(token)
        stopped: list[Request] = []
        if emitters.watched or (emitters.stop_ids and not emitters.stop_ids.isdisjoint(tokens)):
            stopped = [s.request for s, token in zip(sequences, tokens, strict=True) if s.stops_at(token)]
        if stopped or emitters.first_end <= tick + 1:
            self._publish([s for s in sequences if s.finish_reason or end_of(s.request, tick) == tick + 1])
        ended = self.scheduler.finish(step, stopped=stopped)
        end_ns = self.clock.now_ns()
        for sequence in sequences[batch.num_decodes :]:
            if sequence.first_token_ns < 0:
                sequence.first_token_ns = end_ns
        finished = [self._remove(request, end_ns) for request in ended]
        experts = self.executor.active_experts()
        times, waited = self.timer.times(end_ns), self.timer.launch_bound
        if self._mask is not None:
            self.recorder.masked(self._mask.times())
        self.recorder.done(
            step, times, ended, bucket=batch.bucket, active_experts=experts, launch_bound=waited
        )
        return finished

    # -- leaving -----------------------------------------------------------------------------------

    def let_go(self, now_ns: int | None = None) -> list[Sequence]:
        """Ends those whose deadline has come and those to be aborted; every step begins with it."""
        now_ns = self.clock.now_ns() if now_ns is None else now_ns
        gone = []
        if self.scheduler.first_deadline_ns <= now_ns:
            gone += [self._remove(request, now_ns) for request in self.scheduler.expire(now_ns)]
        if self._to_abort:
            for sequence in sorted(self._to_abort, key=lambda s: s.index):
                if sequence.request.status is not Status.FINISHED:
                    self.scheduler.abort(sequence.request)
                    self.recorder.aborted(sequence, now_ns)
                    gone.append(self._remove(sequence.request, now_ns))
            self._to_abort.clear()
        return gone

    def _fail(self, step: Step, error: BaseException) -> list[Sequence]:
        """Ends the requests of a step that broke; what it would have computed is forgotten."""
        for request in step.preempted:
            self.executor.release(self._sequences[request])
        in_step = {request for request, _ in step.prefills}.union(self._decoding)
        for request in self._decoding:
            self.scheduler.block_table(request)  # so that blocks taken for this step have an owner
        end_ns = self.clock.now_ns()
        failed = []
        # The latest first: it may share blocks that an earlier one should have computed in this step.
        for request in [r for r in reversed(self.scheduler.running) if r in in_step]:
            self.scheduler.abort(request)
            sequence = self._sequences[request]
            sequence.finish_reason, sequence.error = "error", f"{type(error).__name__}: {error}"
            failed.append(self._remove(request, end_ns))
        self._decoding = []
        self.scheduler.finish(Step(StepFeatures()))  # a step in which nobody computed anything
        ended = [sequence.request for sequence in failed]
        self.recorder.done(step, self.timer.times(end_ns), ended, failed=True)
        return failed

    def _publish(self, ending: list[Sequence]) -> None:
        """Before sequences end: the blocks their outputs have filled can be shared from now on.

        The token just sampled has no keys and values yet.
        """
        kv = self.scheduler.kv
        if not kv.prefix_caching:
            return
        for sequence in ending:
            request = sequence.request
            self.scheduler.block_table(request)
            named = len(request.block_keys) * kv.block_size
            computed = sequence.tokens(named, request.prompt_tokens + len(sequence.output_ids) - 1).tolist()
            parent = request.block_keys[-1] if named else b""
            assert isinstance(parent, bytes)
            request.block_keys = [*request.block_keys, *token_keys(computed, kv.block_size, parent)]

    def _remove(self, request: Request, now_ns: int) -> Sequence:
        """The scheduler has let go of it, so does the engine."""
        self._calm = False
        sequence = self._sequences.pop(request)
        del self._by_id[request.id]
        self.executor.release(sequence)
        sequence.finished(now_ns)
        return sequence


def _mix(seed: int, number: int) -> int:
    """A seed of 63 bits for the request of this number."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0] >> np.uint64(1))
