"""Depth-first search by weight: requests below the heaviest branches of the radix tree first."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from blis_py.core._cache_aware import CacheAwareQueue, by_arrival
from blis_py.core.radix_node import Node
from blis_py.core.request import Request


class DfsWeight(CacheAwareQueue):
    """Descend from the root, at each node into the child with most waiting requests below it.

    Requests that share a subtree are thus served one after the other while it is cached, the heaviest first
    (SGLang's `dfs-weight`). Among equally heavy children the one with the earliest arrival comes first; at
    the end of the path, the longest match. Requires the radix cache.
    """

    def best(self, waiting: Collection[Request]) -> Request:
        below: dict[Node, list[Request]] = {}
        children: dict[Node | None, list[Node]] = {}
        for request in waiting:
            self.kv.match(request)
            node = request.match.node if request.match is not None else None
            while node is not None and node.parent is not None:
                if node not in below:
                    below[node] = []
                    top = node.parent.parent is None
                    children.setdefault(None if top else node.parent, []).append(node)
                below[node].append(request)
                node = node.parent
        end: Node | None = None
        while end in children:
            end = min(children[end], key=lambda node: _weight(below[node]))
        return min(waiting if end is None else below[end], key=self.score)

    def score(self, request: Request) -> tuple[Any, ...]:
        return (-self.kv.match(request), *by_arrival(request))


def _weight(requests: list[Request]) -> tuple[Any, ...]:
    return (-len(requests), min(map(by_arrival, requests)))
