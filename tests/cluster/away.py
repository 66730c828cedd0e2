"""A hand-over between two instances that record what they are called with."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from blis_py.cluster.instances.handoffs import HANDOFFS
from blis_py.cluster.instances.pairs import Pair
from blis_py.cluster.topology import Disaggregation
from blis_py.core.request import Request

FRONT_END_NS = 3
BLOCK, BLOCK_BYTES = 4, 1000


class Log:
    """Anything that is called: what, and with which numbers and words."""

    def __init__(self, **known: Any) -> None:
        vars(self).update(known)
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            plain = tuple("request" if isinstance(each, Request) else each for each in given)
            self.calls.append((name, *plain))

        return call

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.calls]


class Network(Log):
    def send(self, size_bytes: int, prefill: int, decode: int, when: Any, pair: Pair) -> Any:
        self.calls.append(("send", size_bytes))
        return SimpleNamespace(alone_ns=7, tag=pair)


class Events(Log):
    now_ns = 100

    def call_at(self, time_ns: int, action: Any, *_: Any) -> None:
        self.calls.append(("call_at", time_ns))
        self.actions.append(action)


class Away:
    """A hand-over with two instances of its own: 1 for prefill, 0 for decode."""

    def __init__(self, name: str, chosen: int = 0, committed: int = 0, **settings: Any) -> None:
        given = Disaggregation(handoff=name, **settings)
        self.handoff: Any = HANDOFFS[name](given)
        spec = SimpleNamespace(
            scheduler=SimpleNamespace(block_size=BLOCK),
            kv_block_bytes=BLOCK_BYTES,
            kv_layers=4,
            gpus=2,
        )
        member = SimpleNamespace(pool=SimpleNamespace(spec=spec, name="p"))
        self.decode, self.prefill = (
            Log(
                committed=committed,
                committed_beside=lambda request: self.decode.committed,
                free_places=lambda request: 4 - self.decode.committed,
                most_tokens=50,
                now_ns=0,
                receiving_beside=lambda request: [],
                block_size=BLOCK,
            )
            for _ in range(2)
        )
        self.events, self.recorder, self.network = Events(actions=[]), Log(), Network()
        handoff = self.handoff
        handoff._instances, handoff._events = [self.decode, self.prefill], self.events
        handoff._recorder, handoff.network = self.recorder, self.network
        handoff._front_end_ns, handoff._block_bytes = FRONT_END_NS, {}
        handoff._when_sent, handoff._when_computed = handoff._sent, handoff._chunks
        handoff._fleet = SimpleNamespace(members=[member, member], cluster=SimpleNamespace(block_size=BLOCK))
        handoff._choose_decode = lambda request, prefill, now_ns: chosen
        handoff._horizon = Log()

    def begin(
        self, decode: int = 0, prompt_tokens: int = 10, max_tokens: int = 6, deadline_ns: int = -1
    ) -> Pair:
        request = Request("r", 0, prompt_tokens, row=0, output_tokens=5, max_tokens=max_tokens)
        request.deadline_ns = deadline_ns
        assert self.handoff.begin(request, 1, decode, 100)
        pair: Pair = self.handoff._pairs[0]
        return pair

    def prefilled(self, pair: Pair, end_ns: int = 100) -> None:
        assert self.handoff.way_on(pair.request) is not None
        self.handoff.take([pair.request], end_ns)


def on_the_way(name: str = "vllm", prompt_tokens: int = 10, **settings: Any) -> tuple[Away, Pair, Any]:
    away = Away(name, **settings)
    pair = away.begin(prompt_tokens=prompt_tokens)
    away.prefilled(pair)
    return away, pair, pair.decode_request
