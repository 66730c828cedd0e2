"""Ledgers from a witness's records: every nanosecond of a request's life on one line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from blis_py.ledger.division import Divider, PrefillChunk
from blis_py.ledger.lines import BEFORE_SCHEDULING, FOR_A_PLACE, FOR_TOKENS, LedgerLine, Times, add, split
from blis_py.ledger.witness import Noted
from blis_py.metrics.handovers import HandOver
from blis_py.metrics.record import Outcome, RunRecord
from blis_py.metrics.visits import Onward


@dataclass(slots=True)
class InTheWay:
    """The effect of another request on the explained one."""

    request: str
    waited_ns: int = 0
    """Time during which it held a slot and KV blocks, or computed its prompt, while the request waited for
    such."""
    in_steps_ns: int = 0
    """Share of the prompt in the steps in which the request computed."""
    went_ahead: bool = False
    """Whether it arrived later and was admitted earlier."""


@dataclass(slots=True)
class Ledger:
    """The ledger of one request's time."""

    request: str
    outcome: Outcome
    total_ns: int
    """From arrival to the end: E2E of a completed request; otherwise until its client timed out, it was
    rejected, or the run ended."""
    ttft_ns: int | None
    """Time to first token; None if there was none."""
    client_ns: int
    """Closed loop: time it waited at its client before it was sent; not part of the total."""
    whole: Times = field(default_factory=dict)
    """Times that add up to `total_ns`."""
    first: Times = field(default_factory=dict)
    """Times that add up to `ttft_ns`."""
    decode_steps: int = 0
    decode_seqs: int = 0
    """Decoding sequences, or blocks, in these steps, itself included, summed up."""
    prefill_steps: int = 0
    preemptions: int = 0
    in_the_way: dict[str, InTheWay] = field(default_factory=dict)
    """Effects of other requests, by name."""

    def of(self, metric: str) -> Times:
        """The times that make up a metric of this request: up to its first token (TTFT), from then on (TPOT,
        ITL), up to the step that began it (scheduling delay), or all of them."""
        if metric == "scheduling_delay":
            times = self.first if self.ttft_ns is not None else self.whole
            return {line: ns for line, ns in times.items() if line in BEFORE_SCHEDULING}
        if self.ttft_ns is None or metric not in ("ttft", "tpot", "itl"):
            return self.whole
        if metric == "ttft":
            return self.first
        after = {line: ns - self.first.get(line, 0) for line, ns in self.whole.items()}
        return {line: ns for line, ns in after.items() if ns}

    @property
    def batch_size(self) -> float | None:
        """Mean batch size over the steps in which it decoded."""
        return self.decode_seqs / self.decode_steps if self.decode_steps else None


@dataclass(frozen=True, slots=True)
class Stay:
    """A visit: its times on its instance."""

    instance: int
    enqueue_ns: int
    """Entry into the queue; -1 if it did not reach it."""
    ready_ns: int
    """Time from which it can be scheduled there: entry, or the arrival of its KV."""
    cut_ns: int
    """End of the relevant time on the instance."""
    goes_on: bool
    """Whether its request continues elsewhere afterwards."""


@dataclass(frozen=True, slots=True)
class Life:
    """The times of a request."""

    arrival_ns: int
    stays: tuple[Stay, ...]
    """Visits that reached an instance, in order."""
    first_step_ns: int
    """End of the step with its first token; -1 if there is none."""
    cut_ns: int
    """End of the relevant time on instances."""
    end_ns: int

    @property
    def enqueue_ns(self) -> int:
        """Entry into the queue of its first instance; -1 if it did not reach it."""
        return self.stays[0].enqueue_ns if self.stays else -1


class Bookkeeper:
    """Builder of the ledgers for the requests of a run.

    Args:
        record: the run.
        notes: records of each instance, see `Witness`.
        dividers: what divides the steps of each instance.
        arrivals: sending time of each request, by name, if the order of arrival matters.
    """

    def __init__(
        self,
        record: RunRecord,
        notes: Mapping[int, Sequence[Noted]],
        dividers: Sequence[Divider],
        arrivals: Mapping[str, int],
    ) -> None:
        self._record, self._notes, self._dividers = record, notes, dividers
        self._arrivals = arrivals
        self._starts = {index: [run.start_ns for run in runs] for index, runs in notes.items()}

    def ledger(self, row: int) -> Ledger:
        """The ledger of one watched request."""
        record = self._record
        life, due_ns = life_of(record, row), record.table.due_ns
        got = bool(record.first_token_ns[row] >= 0)
        ledger = Ledger(
            request=record.table.id_of(row),
            outcome=Outcome(int(record.outcome[row])),
            total_ns=life.end_ns - life.arrival_ns,
            ttft_ns=int(record.first_token_ns[row]) - life.arrival_ns if got else None,
            client_ns=0 if due_ns is None else life.arrival_ns - int(due_ns[row]),
            preemptions=int(record.preemptions[row]),
        )
        self._on_the_way(ledger, life, row)
        page = _Page(ledger, life, self._arrivals, _handover_of(record, row))
        for stay in life.stays:
            page.read(stay, self._noted_from(stay.instance, stay.enqueue_ns), self._dividers[stay.instance])
        page.leave(life.cut_ns)
        if ledger.ttft_ns is not None and life.first_step_ns >= 0:
            add(ledger.first, self._delivery(int(record.first_token_ns[row]) - life.first_step_ns, row))
        add(ledger.whole, self._delivery(life.end_ns - life.cut_ns, row))
        ledger.first, ledger.whole = _in_order(ledger.first), _in_order(ledger.whole)
        return ledger

    def _delivery(self, late_ns: int, row: int) -> Times:
        """Front-end delays of the tokens that a client sees."""
        prompt_ns = self._record.frontend.prompt_token_ns * int(self._record.table.prompt_tokens[row])
        prompt_ns = min(prompt_ns, late_ns)
        return {LedgerLine.TOKENISATION: prompt_ns, LedgerLine.FRONT_END_AFTER: late_ns - prompt_ns}

    def _noted_from(self, instance: int, from_ns: int) -> Iterable[Noted]:
        """Records of an instance, from the step running at that time."""
        begin = max(bisect_right(self._starts.get(instance, ()), from_ns) - 1, 0)
        return islice(self._notes.get(instance, ()), begin, None)

    def _on_the_way(self, ledger: Ledger, life: Life, row: int) -> None:
        """Book the time before it reaches the queue of its instance."""
        until_ns = life.enqueue_ns if life.enqueue_ns >= 0 else life.cut_ns
        way_ns = until_ns - life.arrival_ns
        front_ns = min(self._record.frontend.before_enqueue_ns, way_ns) if life.enqueue_ns >= 0 else 0
        waited_ns = 0 if self._record.gateway_ns is None else max(int(self._record.gateway_ns[row]), 0)
        own_ns = way_ns - front_ns - waited_ns
        handover = _handover_of(self._record, row)
        if handover is not None and handover.reserved_ns < handover.prefill_end_ns:
            reserved_ns = min(max(until_ns - handover.arrived_ns - front_ns, 0), own_ns)
            add(ledger.whole, {LedgerLine.RESERVATION: reserved_ns})
            own_ns -= reserved_ns
        before = {
            LedgerLine.ADMISSION: own_ns,
            LedgerLine.GATEWAY: waited_ns,
            LedgerLine.FRONT_END_BEFORE: front_ns,
        }
        add(ledger.whole, before)
        if ledger.ttft_ns is not None:
            add(ledger.first, ledger.whole)


def _in_order(times: Times) -> Times:
    """Lines with a non-zero time, in order."""
    return {line: times[line] for line in LedgerLine if times.get(line)}


def _handover_of(record: RunRecord, row: int) -> HandOver | None:
    return None if record.handovers is None else record.handovers.of(row)


def life_of(record: RunRecord, row: int) -> Life:
    """The times of a request."""
    handover = _handover_of(record, row)
    visits, emission = record.visits, record.visits.emission
    arrival_ns, finish_ns = int(record.table.arrival_ns[row]), int(visits.last(visits.finish_ns)[row])
    end_ns = finish_ns if finish_ns >= 0 else max(record.end_ns, arrival_ns)
    first_step_ns, cut_ns, stays = -1, end_ns, []
    own, _ = visits.of(np.array([row]))
    for visit in own.tolist():
        instance, enqueue_ns = int(visits.instance[visit]), int(visits.enqueue_ns[visit])
        outcome, left_ns = visits.outcome[visit], end_ns
        if visits.first_token_ns[visit] >= 0:
            ends = record.instances[instance].step_ends
            if first_step_ns < 0:
                first_step_ns = ends.one(int(emission.first_step[visit]))
                if outcome >= Onward.HANDED_OVER and handover is not None:
                    first_step_ns = handover.end_ns  # delivered with the KV
            if outcome <= Outcome.LENGTH_CAPPED:
                left_ns = cut_ns = ends.one(int(emission.last_step[visit]))
        goes_on = bool(outcome >= Onward.HANDED_OVER)
        if goes_on:
            left_ns = int(visits.finish_ns[visit])
        if 0 <= enqueue_ns <= end_ns:
            receives = handover is not None and handover.decode == instance and not goes_on
            ready_ns = max(enqueue_ns, handover.end_ns) if handover is not None and receives else enqueue_ns
            stays.append(Stay(instance, enqueue_ns, ready_ns, left_ns, goes_on))
    return Life(arrival_ns, tuple(stays), first_step_ns, cut_ns, end_ns)


class _Page:
    """Observer that writes the events on instances into a ledger."""

    def __init__(
        self, ledger: Ledger, life: Life, arrivals: Mapping[str, int], handover: HandOver | None = None
    ) -> None:
        self._ledger, self._life, self._arrivals = ledger, life, arrivals
        self._divider: Divider
        self._handover = handover
        self._now_ns = life.enqueue_ns
        self._stay: Stay
        self._computed, self._decoded = 0, False
        """Tokens it has computed here, and whether its prompt is complete."""
        self._admitted = False

    def read(self, stay: Stay, noted: Iterable[Noted], divider: Divider) -> None:
        """Book all records of an instance during its visit, in order."""
        self._stay, self._computed, self._decoded = stay, 0, False
        self._divider = divider
        self.leave(stay.enqueue_ns)
        self._receive(stay)
        name = self._ledger.request
        for run in noted:
            line = run.doing.get(name)
            if line is None or run.ends_ns[-1] <= stay.enqueue_ns:
                continue
            until_ns = min(run.start_ns, stay.cut_ns)
            if self._now_ns < until_ns:  # between two steps
                self._book(self._now_ns, until_ns, {LedgerLine.HOST: until_ns - self._now_ns})
            if run.start_ns >= stay.cut_ns:
                break
            for index, start_ns, end_ns in _steps(run, line):
                if start_ns < stay.cut_ns and end_ns > self._now_ns:
                    self._step(run, index, start_ns, end_ns, line)
            self._note_others(run)
        if self._now_ns < stay.cut_ns and not stay.goes_on:
            self._book(self._now_ns, stay.cut_ns, {LedgerLine.UNFINISHED: stay.cut_ns - self._now_ns})

    def _receive(self, stay: Stay) -> None:
        """Book the time until the KV is at the decode instance, by cause."""
        handover = self._handover
        if handover is None or stay.instance != handover.decode or stay.goes_on:
            return
        for until_ns, line in ((handover.begin_ns, LedgerLine.RESERVATION), (handover.end_ns, None)):
            begin_ns, until_ns = self._now_ns, min(until_ns, stay.cut_ns)
            if until_ns <= begin_ns:
                continue
            if line is not None:
                self._book(begin_ns, until_ns, {line: until_ns - begin_ns})
                continue
            wire_ns = min(handover.alone_ns, until_ns - begin_ns)
            parts = {LedgerLine.WIRE: wire_ns, LedgerLine.LINK_QUEUE: until_ns - begin_ns - wire_ns}
            self._book(begin_ns, until_ns, parts)

    def leave(self, until_ns: int) -> None:
        """Book the time from leaving an instance to reaching the next one or ending."""
        if self._life.stays and self._now_ns < until_ns:
            self._book(self._now_ns, until_ns, {LedgerLine.HAND_OVER: until_ns - self._now_ns})

    def _step(self, run: Noted, index: int, start_ns: int, end_ns: int, line: LedgerLine) -> None:
        if line is LedgerLine.RUNNING_STEP and start_ns >= self._stay.ready_ns:
            line = LedgerLine.COMPOSED_STEP  # the last of a run of identical steps
        begin_ns, until_ns = max(start_ns, self._now_ns), min(end_ns, self._stay.cut_ns)
        times = self._times(run, index, end_ns - start_ns, line)
        if until_ns - begin_ns < end_ns - start_ns:
            parts = split(until_ns - begin_ns, list(times.values()))
            times = dict(zip(times, parts, strict=True))
        self._book(begin_ns, until_ns, times)
        if times.get(LedgerLine.OTHERS_PREFILL):
            self._share_out(run, times[LedgerLine.OTHERS_PREFILL])
        if line in FOR_A_PLACE:
            self._blame(run.running, until_ns - begin_ns)
        elif line in FOR_TOKENS:
            self._blame([chunk.request for chunk in run.chunks], until_ns - begin_ns)

    def _book(self, begin_ns: int, until_ns: int, times: Times) -> None:
        assert sum(times.values()) == until_ns - begin_ns, f"{times} in {until_ns - begin_ns} ns"
        add(self._ledger.whole, times)
        if self._ledger.ttft_ns is not None and until_ns <= self._life.first_step_ns:
            add(self._ledger.first, times)
        self._now_ns = until_ns

    def _times(self, run: Noted, index: int, duration_ns: int, line: LedgerLine) -> Times:
        """Times of a whole step."""
        if line is LedgerLine.DECODE:
            step = run.features.after(index) if index else run.features
            self._ledger.decode_steps += 1
            self._ledger.decode_seqs += step.decode_seqs or getattr(step, "denoise_blocks", 0)
            self._decoded = True
            return self._divider.of_decode(duration_ns, step, run.chunks)
        if line is LedgerLine.OWN_PREFILL:
            own = next(chunk for chunk in run.chunks if chunk.request == self._ledger.request)
            self._ledger.prefill_steps += 1
            times = self._divider.of_prefill(duration_ns, run.features, run.chunks, own)
            if self._is_extra(own):
                times[LedgerLine.EXTRA_STEP] = times.pop(LedgerLine.OWN_PREFILL)
                self._decoded = True
                return times
            return self._recomputed(times, own)
        return {line: duration_ns}

    def _is_extra(self, own: PrefillChunk) -> bool:
        """Whether a step computes again what the prefill instance has computed, for its token."""
        handover = self._handover
        there = handover is not None and self._stay.instance == handover.decode and not self._decoded
        return there and own.tokens == 1 and own.past + 1 == own.length

    def _recomputed(self, times: Times, own: PrefillChunk) -> Times:
        """The request's own share of a step, split into recomputation and first-time computation.

        After it has emitted, a preemption discards the prompt and all of the answer.
        """
        known = own.length if self._decoded else self._computed
        again = min(max(known - own.past, 0), own.tokens)
        self._computed = max(self._computed, own.past + own.tokens)
        if not self._decoded and self._computed == own.length:
            self._decoded = True
        if not again:
            return times
        parts = split(times[LedgerLine.OWN_PREFILL], [again, own.tokens - again])
        return times | {LedgerLine.RECOMPUTE: parts[0], LedgerLine.OWN_PREFILL: parts[1]}

    def _share_out(self, run: Noted, ns: int) -> None:
        others = [chunk for chunk in run.chunks if chunk.request != self._ledger.request]
        shares = split(ns, [chunk.tokens for chunk in others])
        for chunk, share in zip(others, shares, strict=True):
            self._other(chunk.request).in_steps_ns += share

    def _blame(self, names: Sequence[str], ns: int) -> None:
        for name in names:
            if name != self._ledger.request:
                self._other(name).waited_ns += ns

    def _note_others(self, run: Noted) -> None:
        """Record requests that arrived after it and were admitted before it."""
        if self._admitted or self._ledger.request in run.admitted:
            self._admitted = True
            return
        for name in run.admitted:
            if self._arrivals.get(name, -1) > self._life.arrival_ns:
                self._other(name).went_ahead = True

    def _other(self, name: str) -> InTheWay:
        return self._ledger.in_the_way.setdefault(name, InTheWay(name))


def _steps(run: Noted, line: LedgerLine) -> Iterator[tuple[int, int, int]]:
    """Index, begin and end of each step, or of all together if nothing is divided."""
    start_ns = run.start_ns
    if line not in (LedgerLine.DECODE, LedgerLine.OWN_PREFILL, LedgerLine.RUNNING_STEP):
        yield 0, start_ns, int(run.ends_ns[-1])
        return
    for index, end_ns in enumerate(run.ends_ns.tolist()):
        yield index, start_ns, end_ns
        start_ns = end_ns
