"""The router of NVIDIA Dynamo: the instance with the least prompt work and the fewest active KV blocks.

Source: the pages "Routing Concepts" and "Disaggregated Serving" of its documentation, with default settings
(`--router-mode kv`). It counts what it has sent itself: uncached prompt tokens until the first token, and the
blocks of prompts until the end. Among prefill instances only the former count; among decode instances only
the latter, and what they have cached is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from blis_py.cluster.routing.router import RouterSetup
from blis_py.core.blocks import block_count
from blis_py.core.request import FINISHED, Request

if TYPE_CHECKING:
    from blis_py.cluster.instances.fleet import MemberState


class Dynamo:
    """The ready instance of the least cost, in blocks; ties at random."""

    looks_at_load = True

    def __init__(self, setup: RouterSetup) -> None:
        self._signals, self._rng, size = setup.signals, setup.rng, setup.signals.block_size
        self._block_size = size
        self._prefills, self._decodes = setup.roles != {"decode"}, setup.roles != {"prefill"}
        self._prefixes = setup.signals.watch_prefixes() if self._prefills else None
        self._prompts: list[list[tuple[Request, int]]] = []
        """By instance: requests without a token yet, and their uncached prompt tokens."""
        self._blocks: list[int] = []
        """By instance: blocks of the prompts of requests that have not ended."""
        self._sent: dict[int, tuple[int, int]] = {}
        """Row -> instance and blocks of a request that has not ended."""
        self._ends: list[tuple[int, int]] = []
        """Heap of ends that the client sees in the future: time, row."""
        setup.signals.follow(self._change)
        if setup.notify is not None:
            setup.notify(lambda request, seen_ns: heappush(self._ends, (seen_ns, request.row)))

    def __call__(self, request: Request, now_ns: int) -> int:
        self._forget_ended(now_ns)
        ready, lacking = self._signals.ready, self._lacking(request)
        costs = [self._cost(index, lacking[index]) for index in ready]
        least = min(costs)
        ties = [index for index, cost in zip(ready, costs, strict=True) if cost == least]
        chosen = ties[0] if len(ties) == 1 else ties[self._rng.below(len(ties))]
        self._note(request, chosen, lacking[chosen])
        return chosen

    def _cost(self, index: int, lacking_tokens: int) -> float:
        cost = 0.0
        if self._prefills:
            own = self._prompts[index] = [one for one in self._prompts[index] if not _has_begun(one[0])]
            cost += (sum([tokens for _, tokens in own]) + lacking_tokens) / self._block_size
        return cost + self._blocks[index] if self._decodes else cost

    def _lacking(self, request: Request) -> Sequence[int]:
        """Prompt tokens that each instance would compute."""
        lacking = [request.prompt_tokens] * self._signals.count
        if self._prefixes is not None:
            for holders, blocks in self._prefixes.held(request):
                for index in range(self._signals.count):
                    if holders >> index & 1:
                        lacking[index] = max(request.prompt_tokens - blocks * self._block_size, 0)
        return lacking

    def _note(self, request: Request, index: int, lacking_tokens: int) -> None:
        if self._prefills:
            self._prompts[index].append((request, lacking_tokens))
        if self._decodes:
            self._forget(request.row)
            blocks = block_count(request.prompt_tokens, self._block_size)
            self._sent[request.row] = index, blocks
            self._blocks[index] += blocks

    def _forget_ended(self, now_ns: int) -> None:
        while self._ends and self._ends[0][0] <= now_ns:
            self._forget(heappop(self._ends)[1])

    def _forget(self, row: int) -> None:
        sent = self._sent.pop(row, None)
        if sent is not None:
            self._blocks[sent[0]] -= sent[1]

    def _change(self, index: int, state: MemberState) -> None:
        while len(self._blocks) <= index:
            self._blocks.append(0)
            self._prompts.append([])


def _has_begun(request: Request) -> bool:
    """Whether a request has a token, or has ended."""
    return request.status is FINISHED or request.generated > request.carried
