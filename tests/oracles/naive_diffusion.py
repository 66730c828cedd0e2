"""Block diffusion on one instance, round by round: every round is planned anew.

Re-looping and keeping a block in place save work of the host, never change who computes what, so there is
nothing of them here. No prefixes are shared; a page holds one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

BLOCK = 32


@dataclass(eq=False)
class Dream:
    """A request. `rounds` are the forwards that each of its blocks takes."""

    row: int
    arrival_ns: int
    prompt: int
    answer: int
    rounds: list[int]
    priority: int = 0

    pages: int = 0
    stored: int = 0
    generated: int = 0
    blocks: int = 0
    """Finished."""
    spent: int = 0
    """Rounds of the current block; a preempted request goes on with it later."""
    emitted_ns: list[int] = field(default_factory=list)
    preemptions: int = 0

    @property
    def to_prefill(self) -> int:
        """Whole blocks that are known and not in the cache."""
        return (self.prompt + self.generated) // BLOCK * BLOCK - self.stored


class NaiveDiffusion:
    """See the module.

    Args:
        fdfo: first done, first out; else a batch runs until all its blocks are final.
        price: duration of a round by the tokens it computes, ns.
    """

    def __init__(
        self, pages: int, seqs: int, budget: int, fdfo: bool, victims: str, price: Callable[[int], int]
    ) -> None:
        self.free, self.seqs, self.budget, self.fdfo, self.victims = pages, seqs, budget, fdfo, victims
        self.price = price
        self.waiting: list[Dream] = []
        self.running: list[Dream] = []

    def serve(self, dreams: list[Dream], by_priority: bool = False) -> None:
        coming = sorted(dreams, key=lambda one: (one.arrival_ns, one.row))
        now_ns = 0
        while coming or self.waiting or self.running:
            if not (self.waiting or self.running):
                now_ns = max(now_ns, coming[0].arrival_ns)
            while coming and coming[0].arrival_ns <= now_ns:
                self.waiting.append(coming.pop(0))
            if by_priority:
                self.waiting.sort(key=lambda one: (one.priority, one.arrival_ns, f"{one.row}"))
            chunks, denoised = self.first_out() if self.fdfo else self.all_together()
            rounds = 1
            if not self.fdfo and denoised:
                rounds = max(self.left(one) for one in denoised)
            now_ns += rounds * self.price(sum(chunks.values()) + BLOCK * len(denoised))
            for one, tokens in chunks.items():
                one.stored += tokens
            for one in denoised:
                self.after_rounds(one, rounds, now_ns)

    # -- what a round consists of ----------------------------------------------------------------------

    def first_out(self) -> tuple[dict[Dream, int], list[Dream]]:
        """Blocks of all who have their prompt, and beside them chunks of prompts."""
        chunks: dict[Dream, int] = {}
        budget = self.budget
        before = len(self.all_preemptions())
        for one in [one for one in self.running if not one.to_prefill]:
            if one in self.running:
                self.hold(one, one.stored + BLOCK)
        budget -= BLOCK * sum(not one.to_prefill for one in self.running)
        self.prompts(chunks, budget, before)
        return chunks, [one for one in self.running if not one.to_prefill]

    def all_together(self) -> tuple[dict[Dream, int], list[Dream]]:
        """Prompts in rounds of their own, then all blocks at once."""
        chunks: dict[Dream, int] = {}
        self.prompts(chunks, self.budget, len(self.all_preemptions()))
        if chunks:
            return chunks, []
        for one in list(self.running):
            if one in self.running:
                self.hold(one, one.stored + BLOCK)
        return {}, [one for one in self.running if not one.to_prefill]

    def prompts(self, chunks: dict[Dream, int], budget: int, preempted_before: int) -> None:
        for one in [one for one in self.running if one.to_prefill]:
            tokens = min(one.to_prefill, budget // BLOCK * BLOCK)
            if tokens and one in self.running and self.hold(one, one.stored + tokens):
                chunks[one] = tokens
                budget -= tokens
        for one in [one for one in chunks if one not in self.running]:
            del chunks[one]
        if len(self.all_preemptions()) > preempted_before:
            return
        while self.waiting and len(self.running) < self.seqs and budget >= BLOCK:
            one = self.waiting[0]
            tokens = min(one.to_prefill, budget // BLOCK * BLOCK)
            if (tokens or BLOCK) > self.free * BLOCK:
                return
            self.running.append(self.waiting.pop(0))
            self.hold(one, tokens or BLOCK)
            if tokens:
                chunks[one] = tokens
            budget -= tokens or BLOCK

    # -- pages -----------------------------------------------------------------------------------------

    def all_preemptions(self) -> list[Dream]:
        return [one for one in self.running + self.waiting for _ in range(one.preemptions)]

    def hold(self, one: Dream, tokens: int) -> bool:
        """Pages for its first `tokens`; others leave for them, or it leaves itself."""
        while tokens // BLOCK - one.pages > self.free:
            last = max(self.running, key=lambda o: (o.priority, o.arrival_ns, self.running.index(o)))
            victim = self.running[-1] if self.victims == "fcfs" else last
            self.free += victim.pages
            victim.pages = victim.stored = 0
            victim.preemptions += 1
            self.running.remove(victim)
            self.waiting.insert(0, victim)
            if victim is one:
                return False
        self.free -= max(tokens // BLOCK - one.pages, 0)
        one.pages = max(one.pages, tokens // BLOCK)
        return True

    # -- blocks ----------------------------------------------------------------------------------------

    def left(self, one: Dream) -> int:
        return one.rounds[one.blocks] - one.spent

    def after_rounds(self, one: Dream, rounds: int, now_ns: int) -> None:
        one.spent += rounds
        if self.left(one) > 0:
            return
        known = (one.prompt + one.generated) % BLOCK
        one.generated = min(one.generated + BLOCK - known, one.answer)
        one.emitted_ns.append(now_ns)
        one.stored += BLOCK
        one.blocks, one.spent = one.blocks + 1, 0
        if one.generated == one.answer:
            self.running.remove(one)
            self.free += one.pages
