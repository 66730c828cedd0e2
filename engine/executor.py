"""Execution of the model on planned steps: slots, batch tensors, forward, logits."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch

from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step
from engine.batch import BatchBuilder, BatchTransfer, PaddedMix
from engine.emitters import Emitters
from engine.forward_context import ForwardContext, KVCache
from engine.kernels.attention import AttentionMetadata
from engine.kernels.dependent import launching_dependents
from engine.kernels.prompt_attention import Attend, FreshPrompts
from engine.launching import HostLaunch, LaunchSide
from engine.sequence import NO_SLOT, Roster, Sequence
from engine.staging_buffer import Inputs, Ints, StagingLayout


class Model(Protocol):
    """A model as the executor uses it; `engine.models.Decoder` is one."""

    config: Any

    def __call__(self, input_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[R, d] -> [R, vocab]`, float32."""
        ...

    def track_expert_load(self) -> torch.Tensor | None:
        """Start counting tokens of experts, `[sparse layers, experts]` int64; None if the model is dense."""
        ...


class Forward:
    """The model and its KV cache.

    Args:
        dependent: launch small kernels early; see `engine.kernels.dependent`.
        prompts: attention of prompts with nothing cached; None = as all others.
    """

    def __init__(
        self, model: Model, kv: KVCache, dependent: bool = False, prompts: Attend | None = None
    ) -> None:
        self.model, self.kv, self.dependent, self._prompts = model, kv, dependent, prompts

    def hidden(self, inputs: Inputs, meta: AttentionMetadata, fresh: Ordered[int] = ()) -> torch.Tensor:
        """Hidden states `[T, d]`; keys and values go into the cache.

        Args:
            fresh: lengths of the prompts, if none has anything cached.
        """
        prompts = None
        if fresh and self._prompts is not None:
            prompts = FreshPrompts.of(self._prompts, fresh, meta)
        context = ForwardContext(inputs.positions, inputs.slots, meta, self.kv, prompts)
        if not self.dependent:
            return self.model(inputs.input_ids, context)
        with launching_dependents():
            return self.model(inputs.input_ids, context)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[R, vocab]` float32."""
        return self.model.logits(hidden)


class Graphs(Protocol):
    """Captured decode steps; see `engine.graphs`."""

    @property
    def buckets(self) -> Ordered[int]: ...

    def bucket(self, decodes: int) -> int: ...

    def replay(self, bucket: int, decodes: int) -> torch.Tensor:
        """Hidden states `[decodes, d]`."""
        ...

    def replay_greedy(self, bucket: int, decodes: int) -> torch.Tensor:
        """The most likely tokens `[decodes]`."""
        ...


class MixedReplay(Protocol):
    """Captured steps with prompts; see `engine.mixed_graphs`."""

    @property
    def sizes(self) -> Ordered[int]: ...

    @property
    def prompts(self) -> int: ...

    def padded(self, decodes: int, prompts: int, tokens: int) -> PaddedMix | None: ...

    def replay(self, size: int) -> torch.Tensor:
        """Hidden states `[size, d]`."""
        ...


@dataclass(slots=True)
class Batch:
    """One step, ready to run."""

    layout: StagingLayout
    transfer: BatchTransfer
    """Copies that it needs."""
    emitters: Emitters
    num_seqs: int
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    bucket: int
    """Padded size of a captured step: its sequences if all of them decode, else its tokens; 0 = eager."""
    fresh: Ordered[int] = ()
    """Lengths of the prompts, if none has anything cached."""
    greedy: bool = False
    """Whether its tokens are the most likely ones, and nothing else is wanted: a graph may choose them."""
    tokens: torch.Tensor | None = None
    """`[R]` int64: those that a graph has chosen; set when it is launched."""


class Executor:
    """Slots of running sequences, and the batch and forward of each step.

    Args:
        graphs: captured decode steps, or None: all of them eager.
        mixed_graphs: captured steps with prompts; the same.
        expert_load: `[sparse layers, experts]` to which the model adds the tokens of each expert, or None.
        side: carries out copies and forwards; None = the calling thread.
    """

    def __init__(
        self,
        forward: Forward,
        builder: BatchBuilder,
        max_num_seqs: int,
        graphs: Graphs | None = None,
        expert_load: torch.Tensor | None = None,
        side: LaunchSide | None = None,
        mixed_graphs: MixedReplay | None = None,
    ) -> None:
        self.forward = forward
        self.side = side or HostLaunch()
        self.graphs, self.mixed_graphs = graphs, mixed_graphs
        self._expert_load = expert_load
        self.builder = builder
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._decoding = Roster()
        self._decodes = self._latest = Emitters.of([], np.zeros(0, dtype=np.int64), 0)
        """Those of the latest batch that decode, and all of them."""
        self._joining: list[Sequence] = []
        """Sequences whose prompts the latest batch completes."""
        self._published: list[Sequence] = []
        """Sequences whose tables may have changed since the latest batch was prepared."""

    # -- slots -----------------------------------------------------------------------------------

    def release(self, sequence: Sequence) -> None:
        """The sequence no longer runs; its slot is free."""
        if sequence.slot != NO_SLOT:
            self._free_slots.append(sequence.slot)
            sequence.slot = NO_SLOT

    def keep_tokens(self, batch: Batch, tokens: torch.Tensor) -> None:
        """On the launching side: what was sampled `[R]` goes into the relay buffer, as next inputs."""
        self.builder.keep(batch.layout.device, tokens)

    def note_tokens(self, emitters: Emitters, tokens: Ints) -> None:
        """Copy the sampled tokens to the host."""
        self.builder.sampled(emitters.rows, tokens)

    @property
    def free_slots(self) -> int:
        """Slots that no sequence has."""
        return len(self._free_slots)

    def published(self, sequences: Iterable[Sequence]) -> None:
        """Note that a radix cache has the blocks of prompts, and may have put its own in their place."""
        self._published += sequences

    # -- prepare -----------------------------------------------------------------------------------

    def prepare(
        self,
        step: Step,
        decoding: Roster,
        scheduler: Scheduler,
        sequence_of: dict[Request, Sequence],
    ) -> Batch:
        """The batch of a planned step, in the staging buffer."""
        for request in step.preempted:
            self.release(sequence_of[request])
        for sequence in self._published:
            if sequence.slot != NO_SLOT:
                self._write_table(sequence, scheduler.block_table(sequence.request))
        self._published = []
        if decoding is not self._decoding:
            self._decoding = decoding
            self._look_at(decoding, scheduler, sequence_of)
        decodes = self._latest = self._decodes
        for index in self.builder.begin(decodes.rows):
            table = scheduler.block_table(decoding[index])
            self.builder.new_page(index, decodes.sequences[index].slot, len(table) - 1, table[-1])
        if step.prefills:
            return self._mixed(step.prefills, scheduler, sequence_of)
        count = len(decoding)
        bucket = self.graphs.bucket(count) if self.graphs is not None else 0
        layout = self.builder.decodes(bucket)
        transfer = self.builder.pack(layout)
        return Batch(layout, transfer, decodes, count, count, 1, step.features.max_context + 1, bucket)

    def _look_at(self, decoding: Roster, scheduler: Scheduler, sequence_of: dict[Request, Sequence]) -> None:
        """The roster has changed; of its sequences those that join it may have block tables to be written."""
        emitters, joining = self._latest.only(decoding), self._joining
        if emitters is None:
            joining = [sequence_of[request] for request in decoding]
            rows = np.array([sequence.slot for sequence in joining], dtype=np.int64)
            emitters = Emitters.of(joining, rows, scheduler.tick)
        self._decodes, self._joining = emitters, []
        for sequence in joining:
            if sequence.table_changed and sequence.slot != NO_SLOT:
                self._write_table(sequence, scheduler.block_table(sequence.request))
                sequence.table_changed = False

    def _mixed(
        self,
        prefills: Ordered[tuple[Request, int]],
        scheduler: Scheduler,
        sequence_of: dict[Request, Sequence],
    ) -> Batch:
        slots, starts, complete = [], [], []
        chunks: list[Ints] = []
        for request, count in prefills:
            sequence = sequence_of[request]
            if sequence.slot == NO_SLOT:
                sequence.slot = self._free_slots.pop()
            self._write_table(sequence, scheduler.block_table(request))
            sequence.table_changed = True  # a radix cache may put shared blocks in place of its own
            start, end = request.computed, request.computed + count
            slots.append(sequence.slot)
            starts.append(start)
            chunks.append(sequence.tokens(start, end))
            assert len(chunks[-1]) == count, "a token that is recomputed has not arrived"
            complete.append(sequence if end == request.num_tokens else None)
        emits = [sequence is not None for sequence in complete]
        decodes, padded = len(self._decodes.sequences), None
        if self.mixed_graphs is not None:
            tokens = decodes + sum(count for _, count in prefills)
            padded = self.mixed_graphs.padded(decodes, len(prefills), tokens)
        layout = self.builder.mixed(slots, starts, chunks, emits, padded)
        return Batch(
            layout,
            self.builder.pack(layout),
            self._emitters([sequence for sequence in complete if sequence is not None], scheduler.tick),
            num_seqs=decodes + len(prefills),
            num_decodes=decodes,
            max_query_len=max(map(len, chunks)),
            max_seq_len=int(layout.host.seq_lens.max()),
            bucket=0 if padded is None else padded.tokens,
            fresh=() if any(starts) else [len(chunk) for chunk in chunks],
        )

    def _emitters(self, complete: list[Sequence], tick: int) -> Emitters:
        """The decodes, and behind them the prefills that are complete after this step."""
        if not complete:
            return self._decodes
        rows = np.array([sequence.slot for sequence in complete], dtype=np.int64)
        self._joining = complete
        self._latest = self._decodes.followed_by(Emitters.of(complete, rows, tick))
        return self._latest

    def _write_table(self, sequence: Sequence, table: list[int]) -> None:
        self.builder.tables.write(sequence.slot, 0, table)

    # -- launch ------------------------------------------------------------------------------------

    def send(self, batch: Batch) -> None:
        """Submit the copies of the forward's inputs to the launching side."""
        parcel = batch.transfer
        if not parcel.empty:
            self.builder.read_by(self.side.submit(partial(self.builder.transfer, parcel)), parcel)

    def launch(self, batch: Batch) -> tuple[torch.Tensor | None, torch.Tensor]:
        """On the launching side: starts the forward of a batch that has been sent.

        Returns:
            Logits `[R, vocab]` of the emitting rows, None if there are none or a graph has chosen the tokens,
            and their positions, which may have padding behind them.
        """
        inputs = batch.layout.device
        if batch.greedy and batch.bucket and batch.num_decodes == batch.num_seqs:
            assert self.graphs is not None
            batch.tokens = self.graphs.replay_greedy(batch.bucket, batch.num_decodes)
            self.builder.taken(inputs, batch.num_decodes)
            return None, inputs.positions
        hidden, positions = self._hidden(batch, inputs), inputs.positions
        if batch.num_decodes < batch.num_seqs:  # not every row emits
            if not batch.emitters.sequences:
                return None, positions
            emit = inputs.emit[: len(batch.emitters.sequences)]
            hidden, positions = hidden.index_select(0, emit), positions.index_select(0, emit)
        return self.forward.logits(hidden), positions

    def _hidden(self, batch: Batch, inputs: Inputs) -> torch.Tensor:
        if batch.bucket and batch.num_decodes < batch.num_seqs:
            assert self.mixed_graphs is not None
            return self.mixed_graphs.replay(batch.bucket)
        if batch.bucket:
            assert self.graphs is not None
            hidden = self.graphs.replay(batch.bucket, batch.num_decodes)
            self.builder.taken(inputs, batch.num_decodes)
            return hidden
        meta = self.builder.metadata(
            inputs,
            num_decodes=batch.num_decodes,
            max_query_len=batch.max_query_len,
            max_seq_len=batch.max_seq_len,
        )
        if batch.num_decodes == batch.num_seqs:
            self.builder.taken(inputs, batch.num_decodes)
        return self.forward.hidden(inputs, meta, batch.fresh)

    def active_experts(self) -> torch.Tensor | None:
        """On the launching side: experts that had a token since the last call, over all sparse layers.

        None if experts are not counted.
        """
        if self._expert_load is None:
            return None
        active = self._expert_load.count_nonzero()
        self._expert_load.zero_()
        return active
