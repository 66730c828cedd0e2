"""KV cache of several groups of layers in one pool of blocks (vLLM's hybrid KV cache manager)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import lcm

from blis_py.core.blocks import BlockPool, CacheChanges, CacheLog, CacheReader
from blis_py.core.compiled_classes import mypyc_attr
from blis_py.core.decoding import DecodeSet
from blis_py.core.kv import KVCache
from blis_py.core.kv_groups import (
    ALIGNED,
    CHUNKED,
    FULL,
    STATE,
    WINDOW,
    KVGroup,
    copies_inside,
    is_copied,
)
from blis_py.core.request import DECODING, Request

_GONE = -1
"""In a table: a block that was dropped, or never held."""


@mypyc_attr(acyclic=True)
class GroupTable:
    """Blocks of one request in one group.

    Attributes:
        blocks: in order of content; dropped ones, and those between states, are -1.
        gone: dropped blocks, which are the first.
        looked_at: blocks from the first one on that have been registered, or left out of the cache for good.
        last_state: of states that are kept at the end of blocks, the one before the latest; -1 = none.
    """

    __slots__ = ("blocks", "gone", "last_state", "looked_at")

    def __init__(self, gone: int, held: list[int]) -> None:
        self.blocks = [_GONE] * gone + held
        self.gone = gone
        self.looked_at = gone + len(held)
        self.last_state = -1

    def held(self) -> list[int]:
        """Blocks in order of content."""
        return [block for block in self.blocks[self.gone :] if block != _GONE]

    def skipped(self, end: int, leaves_gaps: bool) -> list[int]:
        """Entries with a block among those before `end`, in order.

        Args:
            leaves_gaps: of states, only those without a gap before `end`, and the one before the latest.
        """
        first, end = self.gone, min(end, len(self.blocks))
        if leaves_gaps:
            while first < end and _GONE in self.blocks[first:end]:
                first += 1
        found = [index for index in range(first, end) if self.blocks[index] != _GONE]
        last = self.last_state
        if leaves_gaps and self.gone <= last < first and self.blocks[last] != _GONE:
            found.insert(0, last)
        return found


@mypyc_attr(acyclic=True)
class Tables:
    """Blocks of one request.

    Attributes:
        boundary: end in tokens of a prefix that full layers have cached and others have not, if there is one.
        flight_tick, flight_tokens: the latest step that computes any of its tokens, and how many.
    """

    __slots__ = ("boundary", "flight_tick", "flight_tokens", "groups")

    def __init__(self, groups: list[GroupTable], boundary: int) -> None:
        self.groups = groups
        self.boundary = boundary
        self.flight_tick = -1
        self.flight_tokens = 0


class FirstGroupLog(CacheLog):
    """Log of the shareable contents of the first group, by the names that requests have for them."""

    def note(self, begins: bool, keys: Sequence[Hashable]) -> None:
        names: list[Hashable] = []
        for key in keys:
            assert isinstance(key, tuple)
            if key[0] == 0:
                names.append(key[1])
        if names:
            super().note(begins, names)


class GroupedKV(KVCache):
    """Block tables by group over one pool.

    Blocks that leave a window are freed as soon as the next tokens are planned. A prefix is found as far as
    every group has what the next token needs: full layers all of its blocks, windows the last ones.

    All full blocks have a content key, private ones too, so that a preempted request finds its own again.

    Args:
        unhashed_first: blocks that cannot be found are reused before all others.
        overlaps: a step is planned while the one before it runs.
        awaits_outcome: a block leaves its window only once the steps that may read it are known to be over.
        replay_only: of a window, only those blocks are cached that a repetition of the prompt makes use of.
        leaves_gaps: a state stays until its request leaves if two behind it were begun before it was free.
        marks_again: the last state of a prompt cannot be used in later steps of its request, either, until it
            is freed.
        capped: the whole prompt of a request is counted at admission with no more than its windows hold.
        flight_tokens: most tokens of steps whose outcome is not known, the one being planned included.
        max_model_len: longest sequence.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        num_blocks: int,
        block_size: int,
        prefix_caching: bool,
        unhashed_first: bool,
        overlaps: bool,
        awaits_outcome: bool,
        replay_only: bool,
        leaves_gaps: bool,
        marks_again: bool,
        capped: bool,
        flight_tokens: int,
        max_model_len: int,
    ) -> None:
        super().__init__(BlockPool(num_blocks), block_size, prefix_caching)
        self.pool.log = FirstGroupLog()
        self.grouped = True
        self.groups = list(groups)
        self.per_crossing = sum(group.kind != STATE for group in groups)
        self._numbers = range(len(self.groups))
        self._spans = [group.span for group in self.groups]
        self._unit = lcm(*self._spans)
        """Blocks of the smallest size that end with blocks of all groups, as what the cache keeps does."""
        self._unhashed_first = unhashed_first and prefix_caching
        self._awaits_outcome = awaits_outcome
        self._replay_only = replay_only
        self._leaves_gaps = leaves_gaps
        self._marks_again = marks_again
        self._max_model_len = max_model_len
        self._most = [group.most_blocks(flight_tokens, max_model_len, block_size) for group in self.groups]
        """Most blocks that a request holds in each group at once; 0 = no limit."""
        self._caps = [
            most if capped and group.kind != ALIGNED else 0
            for most, group in zip(self._most, self.groups, strict=True)
        ]
        self._alike = _alike(self.groups)
        self._once = len(self._alike) == 2 and self.groups[self._alike[0][0]].kind == FULL
        """Whether the hit of the second kind is the common one."""
        self._overlaps = overlaps
        self._phases, self._phases_late = self._phases_of(0), self._phases_of(1)
        """Tokens of the last begun block at which a decode changes its blocks, without and with the step
        before in flight."""
        self._tables: dict[Request, Tables] = {}
        self._boundary = 0
        """`Tables.boundary` of the request whose prefix was looked up last."""
        self._aligned = any(group.kind == ALIGNED for group in self.groups)
        self._multiple = copies_inside(self.groups)
        self._fresh_tick = -1
        self._fresh: set[Hashable] = set()
        """Content of the states that step computes, which cannot be used in it."""

    def _phases_of(self, in_flight: int) -> list[int]:
        """
        Args:
            in_flight: tokens of a decode in flight.
        """
        size = self.block_size
        late = in_flight if self._awaits_outcome else 0
        phases = {0}
        if self.prefix_caching:
            phases.add((size - 1 + in_flight) % size)
        for group in self.groups:
            if group.kind == WINDOW:
                phases.add((group.tokens - 1 + late) % size)
            elif group.kind == ALIGNED:
                phases.add((1 + late) % size)
            elif group.kind == CHUNKED:
                every = range(size) if group.tokens % size else (0,)
                phases.update((phase + late) % size for phase in every)
        return sorted(phases)

    # -- prefixes -----------------------------------------------------------------------------------

    def match(self, request: Request) -> int:
        if not self.prefix_caching:
            return 0
        names = self._names(request, (request.num_tokens - 1) // self.block_size)
        size, unit = self.block_size, self.block_size * self._unit
        hit_tokens, longest = request.num_tokens - 1, 0
        full: int = -1
        while True:
            found = hit_tokens
            for numbers in self._alike:
                if self.groups[numbers[0]].kind == FULL and full >= 0:
                    found = min(found // unit * unit, full)
                    continue
                found = self._hit_tokens(numbers, names, found)
                longest = max(longest, found)
                if self.groups[numbers[0]].kind == FULL:
                    full = found
            shorter = found < hit_tokens
            hit_tokens = min(found, hit_tokens)
            if not shorter or self._once or len(self._alike) == 1:
                break
        self._boundary = longest if longest > hit_tokens and len(self._alike) > 1 else 0
        return hit_tokens // size

    def _hit_tokens(self, numbers: list[int], names: list[Hashable], most_tokens: int) -> int:
        """Tokens of the longest prefix of which these groups, which are alike, have what comes next."""
        group, span, unit = self.groups[numbers[0]], self._spans[numbers[0]], self._unit
        size = self.block_size * span
        most = min(most_tokens // size, len(names) // span)
        if group.kind in (WINDOW, ALIGNED):
            needed, run = group.hit_blocks(self.block_size), 0
            for index in range(most - 1, -1, -1):
                if not self._all_have(numbers, names[index * span + span - 1]):
                    run = 0
                    continue
                if not run and (index + 1) * span % unit:
                    continue
                run += 1
                if run >= needed:
                    return (index + run) * size
            return run * span // unit * unit * self.block_size
        first = most_tokens // group.tokens * group.tokens // size if group.kind == CHUNKED else 0
        index = first
        while index < most and self._all_have(numbers, names[index * span + span - 1]):
            index += 1
        return index * span // unit * unit * self.block_size

    def _all_have(self, numbers: list[int], name: Hashable) -> bool:
        return all(self.pool.contains((number, name)) for number in numbers)

    def cached_blocks(self, request: Request) -> list[int]:
        """One entry per block of the common prefix, of no further meaning."""
        return [0] * self.match(request)

    def _hits(self, request: Request, cached: int) -> list[list[int]]:
        """The blocks of each group in a common prefix of `cached` blocks that the request is to hold."""
        names = self._names(request, cached)
        hits: list[list[int]] = []
        for number in self._numbers:
            span = self._spans[number]
            first = self.groups[number].skipped_tokens(cached * self.block_size) // (self.block_size * span)
            own = names[span - 1 :: span]
            hits.append(self.pool.find([(number, name) for name in own[first:]]))
        return hits

    def idle_match(self, request: Request) -> int:
        return sum(self.pool.count_free(blocks) for blocks in self._hits(request, self.match(request)))

    def follow(self, reader: CacheReader | None = None) -> CacheChanges:
        return self.pool.log.follow(reader)

    # -- admission ------------------------------------------------------------------------------------

    def blocks_needed(self, request: Request, shared: list[int], own: int, new_tokens: int) -> int:
        return self._needed(request, len(shared), new_tokens, [])

    def fits_whole(
        self, request: Request, shared: list[int], own: int, new_tokens: int, besides: int
    ) -> bool:
        missing = min(request.num_tokens, self._max_model_len) - len(shared) * self.block_size
        if self._needed(request, len(shared), missing, self._caps) + besides > self.pool.num_free:
            return False
        return self.can_admit(request, shared, own, new_tokens, besides)

    def _needed(self, request: Request, cached: int, new_tokens: int, caps: list[int]) -> int:
        if cached and self._aligned and self._is_fresh(request, cached):
            return self.pool.total + 1
        first = cached * self.block_size
        tokens, needed = first + new_tokens, 0
        copied = self._is_copied(request, first, tokens)
        for number in self._numbers:
            blocks = self.groups[number].blocks_of(tokens, self.block_size)
            if caps and caps[number]:
                blocks = min(blocks, caps[number])
            needed += self.groups[number].taken(max(blocks - cached // self._spans[number], 0), copied)
        if cached:
            needed += sum(self.pool.count_free(blocks) for blocks in self._hits(request, cached))
        return needed

    def _is_fresh(self, request: Request, cached: int) -> bool:
        """Whether the state at the end of a common prefix is computed by the step being planned."""
        return self._fresh_tick == self.pool.tick and self._names(request, cached)[-1] in self._fresh

    def _is_copied(self, request: Request, start: int, end: int) -> bool:
        """Whether the step copies states inside a chunk."""
        if not self._multiple or end < max(request.prompt_tokens, request.num_tokens - 1):
            return False
        return is_copied(
            start, (end - 1) // self.block_size * self.block_size, self.block_size, self._multiple
        )

    def boundary(self, request: Request) -> int:
        tables = self._tables.get(request)
        if tables is not None:
            return tables.boundary
        return self._boundary if request.block_keys or request.private is not None else 0

    def admit(
        self,
        request: Request,
        shared: list[int],
        own: int,
        new_tokens: int,
        computed: bool = True,
        ahead: int = 0,
    ) -> bool:
        if not self.can_admit(request, shared, own, new_tokens + ahead):
            return False
        cached, pool, size = len(shared), self.pool, self.block_size
        looked_up = request.block_keys or request.private is not None
        held: list[GroupTable] = []
        hits = self._hits(request, cached) if cached else [list[int]() for _ in self._numbers]
        for span, blocks in zip(self._spans, hits, strict=True):
            pool.use(blocks)
            held.append(GroupTable(cached // span - len(blocks), blocks))
        tables = self._tables[request] = Tables(held, self._boundary if looked_up else 0)
        end = cached * size + new_tokens
        self._take(tables, end + ahead, self._is_copied(request, cached * size, end))
        request.block_table = held[0].blocks
        self._note_step(tables, new_tokens)
        if computed:
            self._cache(request, tables, end)
            if self._marks_again and not self._is_copied(request, cached * size, end):
                self._mark_again(request, tables, min(end, request.num_tokens))
        return True

    # -- running requests -------------------------------------------------------------------------------

    def shortfall(self, request: Request, tokens: int) -> int:
        computed = request.computed
        copied = self._is_copied(request, computed, computed + tokens)
        return self._missing(self._tables[request], computed + tokens, copied)

    def extend(self, request: Request, tokens: int, ahead: int = 0) -> bool:
        tables, computed = self._tables[request], request.computed
        before = computed
        if self._awaits_outcome and tables.flight_tick >= self.resolved:
            before = max(0, computed - tables.flight_tokens)
        self._drop_skipped(tables, before)
        copied = self._is_copied(request, computed, computed + tokens)
        if self._missing(tables, computed + tokens + ahead, copied) > self.pool.num_free:
            return False
        self._take(tables, computed + tokens + ahead, copied)
        self._note_step(tables, tokens)
        self._cache(request, tables, computed + tokens)
        if self._marks_again and not copied:
            self._mark_again(request, tables, min(computed + tokens, request.num_tokens))
        return True

    def plan_step(
        self, decoding: DecodeSet, tick: int, chunks: Sequence[tuple[Request, int, int]], in_flight: bool
    ) -> None:
        due = self._due(decoding, tick, in_flight)
        if chunks:
            extended = {request: (tokens, ahead) for request, tokens, ahead in chunks}
            due = sorted([*due, *extended], key=_running_order)
            for request in due:
                if request in extended:
                    self.extend(request, *extended[request])
                else:
                    self.extend_decode(request, request.base + tick, in_flight)
            return
        for request in due:
            self.extend_decode(request, request.base + tick, in_flight)

    def _due(self, decoding: DecodeSet, tick: int, in_flight: bool) -> list[Request]:
        """Decoding requests whose blocks change in a step, in running order: some phases of their blocks, and
        those that have just begun, whose step before was another."""
        due = dict[Request, None]()
        for phase in self._phases_late if in_flight else self._phases:
            due.update(decoding.members[(tick - phase) % self.block_size])
        if decoding.begun:
            decoding.begun = [entry for entry in decoding.begun if entry[0] + 1 >= tick]
            for _, request in decoding.begun:
                if request.status is DECODING:
                    due[request] = None
        return sorted(due, key=_running_order) if len(due) > 1 else list(due)

    def extend_decode(self, request: Request, computed: int, in_flight: bool) -> bool:
        tables = self._tables[request]
        before = computed
        if in_flight and self._awaits_outcome:
            chunk = tables.flight_tokens if tables.flight_tick == self.pool.tick - 1 else 1
            before = max(0, computed - chunk)
        self._drop_skipped(tables, before)
        if self._missing(tables, computed + 1) > self.pool.num_free:
            return False
        self._take(tables, computed + 1)
        known = computed if in_flight else computed + 1
        self._cache_known(request, tables, known)
        if self._marks_again:
            self._mark_again(request, tables, known)
        return True

    def growth(self, decoding: DecodeSet, tick: int) -> int:
        size, more = self.block_size, 0
        for members in decoding.members:
            for request in members:
                tables, computed = self._tables[request], request.base + tick
                for number in self._numbers:
                    table, group = tables.groups[number], self.groups[number]
                    late = 1 if self._overlaps and self._awaits_outcome else 0
                    skipped = group.skipped_tokens(computed - late) // (size * group.span)
                    gone = max(table.gone, skipped)
                    blocks = max(group.blocks_of(computed + 1, size), len(table.blocks))
                    dropped = 0
                    if gone > table.gone:
                        dropped = len(table.skipped(gone, self._leaves_gaps and group.kind == ALIGNED))
                    more += blocks - max(gone, len(table.blocks)) - dropped
        return more

    def settle(self, request: Request, computed: int, in_step: int = 0) -> None:
        """No-op: tables are complete."""

    def _missing(self, tables: Tables, tokens: int, copied: bool = False) -> int:
        missing = 0
        for number in self._numbers:
            blocks = self.groups[number].blocks_of(tokens, self.block_size)
            further = max(blocks - len(tables.groups[number].blocks), 0)
            missing += self.groups[number].taken(further, copied)
        return missing

    def _take(self, tables: Tables, tokens: int, copied: bool = False) -> None:
        """Complete the tables for so many tokens, group by group.

        Args:
            copied: states are copied inside the chunk.
        """
        for number in self._numbers:
            table = tables.groups[number].blocks
            missing = self.groups[number].blocks_of(tokens, self.block_size) - len(table)
            if missing > 0:
                taken = self.groups[number].taken(missing, copied)
                tables.groups[number].last_state = len(table) - 1
                table += [_GONE] * (missing - taken) + self.pool.take(taken)

    def _note_step(self, tables: Tables, tokens: int) -> None:
        tables.flight_tick, tables.flight_tokens = self.pool.tick, tokens

    def _drop_skipped(self, tables: Tables, computed: int) -> None:
        """Free the blocks to which tokens behind so many computed ones do not attend."""
        for number in self._numbers:
            table = tables.groups[number]
            skipped = self.groups[number].skipped_tokens(computed) // (self.block_size * self._spans[number])
            skipped = min(skipped, len(table.blocks))
            if skipped > table.gone:
                self._drop(table, skipped, self._leaves_gaps and self.groups[number].kind == ALIGNED)

    def _drop(self, table: GroupTable, end: int, leaves_gaps: bool) -> None:
        """Free the blocks before an entry; the state before the latest is freed after the others."""
        dropped = table.skipped(end, leaves_gaps)
        last = int(leaves_gaps and len(dropped) > 1 and dropped[0] == table.last_state)
        self._free([table.blocks[index] for index in dropped[last:]])
        self._free([table.blocks[index] for index in dropped[:last]])
        for index in dropped:
            table.blocks[index] = _GONE
        if not leaves_gaps:
            table.gone = end
            return
        while table.gone < end and table.blocks[table.gone] == _GONE:
            table.gone += 1

    def _cache(self, request: Request, tables: Tables, tokens: int) -> None:
        """Register full blocks up to this many tokens, as far as those are known."""
        known = request.num_tokens - request.in_flight(self.resolved)
        self._cache_known(request, tables, min(tokens, known))

    def _cache_known(self, request: Request, tables: Tables, tokens: int) -> None:
        """Register full blocks up to this many tokens."""
        if not self.prefix_caching:
            return
        whole = tokens // (self.block_size * self._unit) * self._unit
        names: list[Hashable] = []
        for number in self._numbers:
            table, span = tables.groups[number], self._spans[number]
            first, full = table.looked_at, whole // span
            if first >= full or self.groups[number].kind == STATE:
                continue
            if len(names) < whole:
                names = self._names(request, whole)
            kept = self._kept(request, tables, number, first, full)
            if kept:
                keys: list[Hashable] = [(number, names[index * span + span - 1]) for index in kept]
                self.pool.remember(keys, [table.blocks[index] for index in kept])
                if self.groups[number].kind == ALIGNED:
                    self._note_fresh([names[index] for index in kept])
            table.looked_at = full

    def _mark_again(self, request: Request, tables: Tables, tokens: int) -> None:
        """Note that a step with so many tokens in all finds the last state of its prompt kept."""
        end = (request.prompt_tokens - 1) // self.block_size
        if not end or tokens // self.block_size != end:
            return
        for number in self._numbers:
            table = tables.groups[number].blocks
            if self.groups[number].kind == ALIGNED and table[end - 1] != _GONE:
                self._note_fresh(self._names(request, end)[-1:])

    def _note_fresh(self, names: list[Hashable]) -> None:
        if self._fresh_tick != self.pool.tick:
            self._fresh_tick = self.pool.tick
            self._fresh.clear()
        self._fresh.update(names)

    def _kept(self, request: Request, tables: Tables, number: int, first: int, end: int) -> list[int]:
        """Blocks from `first` to `end` of a group that the cache keeps."""
        table, group = tables.groups[number], self.groups[number]
        first = max(first, table.gone)
        if group.kind == ALIGNED:
            indices = [index for index in range(first, end) if table.blocks[index] != _GONE]
            if not self._replay_only:
                return indices
            ends = (request.prompt_tokens - 1, tables.boundary)
            last_blocks = [tokens // self.block_size - 1 for tokens in ends]
            return [index for index in indices if index in last_blocks]
        if group.kind != WINDOW or not self._replay_only:
            return list(range(first, end))
        needed, kept = group.hit_blocks(self.block_size), set[int]()
        for boundary in (request.prompt_tokens - 1, tables.boundary):
            last = boundary // (self.block_size * self._unit) * self._unit // group.span
            kept.update(range(max(first, last - needed), min(end, last)))
        return sorted(kept)

    # -- departures -------------------------------------------------------------------------------------

    def publish(self, request: Request) -> None:
        """No-op: blocks were registered when their step was planned."""

    def publish_supplied(self, request: Request, first_tokens: int) -> None:
        self._cache(request, self._tables[request], request.computed)

    def release(self, request: Request, keep: bool = False, unknown: int = 0) -> None:
        tables = self._tables.pop(request, None)
        request.block_table = []
        if tables is None:
            return
        if not keep:
            self._cache_known(request, tables, request.computed - unknown)
        for table in tables.groups:
            self._free(table.held())
        if keep and self.prefix_caching:
            request.private = request.id

    def _free(self, blocks: list[int]) -> None:
        """Free blocks of one group, the last one first."""
        pool = self.pool
        plain = [block for block in blocks if not pool.is_cached(block)]
        if self._unhashed_first:
            pool.give_back_first(plain)
        else:
            pool.give_back(plain)
        if len(plain) < len(blocks):
            pool.leave([block for block in blocks if pool.is_cached(block)])

    # -- inspection -------------------------------------------------------------------------------------

    def blocks_of(self, tokens: int) -> int:
        total = 0
        for number in self._numbers:
            own, most = self.groups[number].blocks_of(tokens, self.block_size), self._most[number]
            total += min(own, most) if most else own
        return total

    def held_blocks(self, request: Request) -> list[int]:
        tables = self._tables.get(request)
        if tables is None:
            return []
        return [block for table in tables.groups for block in table.held()]

    def holds_enough(self, request: Request) -> bool:
        return self._missing(self._tables[request], request.computed) == 0

    def _names(self, request: Request, count: int) -> list[Hashable]:
        """Content names of a request's first blocks, private ones by its own name."""
        known = request.block_keys[:count]
        names: list[Hashable] = list(known)
        if request.extra_key is not None:
            names = [(request.extra_key, key) for key in known]
        names += [(request.id, index) for index in range(len(known), count)]
        return names


def _running_order(request: Request) -> int:
    return request.seq


def _alike(groups: Sequence[KVGroup]) -> list[list[int]]:
    """Numbers of groups by what they keep, those of full layers first."""
    kinds: dict[KVGroup, list[int]] = {}
    for number, group in enumerate(groups):
        kinds.setdefault(group, []).append(number)
    return sorted(kinds.values(), key=lambda numbers: groups[numbers[0]].kind != FULL)
