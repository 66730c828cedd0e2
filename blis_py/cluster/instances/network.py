"""Transfers of KV between instances over contended links.

Every instance has a link out and a link in, of all its GPUs together, and every node one of each as well if
its adapters are fewer than that. A transfer crosses two to four of them; bandwidth is shared max-min fairly
(each link equally among its transfers, and what a transfer cannot use goes to the others), recomputed at
every begin and end of a transfer.

A transfer that no other meets takes one event, its end: set when it is sent, as on idle links, and set anew
when the bytes of another begin to flow over one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import ceil
from typing import Any

from blis_py.cluster.instances.fleet import Member
from blis_py.cluster.time.events import Call, EventQueue
from blis_py.cluster.topology import Link
from blis_py.core.request import NEVER_NS

Done = Callable[["Transfer", int], None]
"""Called with a transfer and the time at which it ends."""


class Port:
    """One direction of a link: of an instance, or of a node.

    Args:
        rate: bytes per ns.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.flows: dict[Transfer, None] = {}
        self.users = 0
        """Transfers under way that share it."""
        self.lone: Transfer | None = None
        """The only one, if it was alone on all its links when it was sent and has met no other."""
        self.left = 0.0
        """Bytes per ns that are not shared out yet, while rates are computed."""
        self.open = 0
        """Transfers whose rate is not fixed yet, while rates are computed."""


class Path:
    """The way of transfers between two instances."""

    def __init__(self, ports: list[Port], link: Link) -> None:
        self.ports = ports
        self.rate = min([port.rate for port in ports]) if ports else 0.0
        """Bytes per ns on idle links."""
        self.latency_ns, self.contended = link.latency_ns, link.contended


class Transfer(Call):
    """Bytes on their way from one instance to another; the call of its next event.

    Args:
        tag: the caller's identifier of the transfer.
    """

    def __init__(
        self, network: Network, size_bytes: int, begin_ns: int, ports: list[Port], done: Done, tag: Any
    ) -> None:
        super().__init__()
        self.size_bytes = size_bytes
        self.begin_ns = begin_ns
        self.done = done
        self.tag = tag
        self.ports = ports
        self.left = float(size_bytes)
        """Bytes that have not arrived, as of `flow_ns`."""
        self.rate = 0.0
        """Bytes per ns; 0 before its bytes begin to flow."""
        self.flow_ns = begin_ns
        self.alone_ns = 0
        """Duration on idle links."""
        self.is_shared = False
        """Whether its bytes flow through contended links."""
        self.is_lone = False
        """Whether its next event is its end on idle links."""
        self._network = network

    def happen(self, now_ns: int) -> None:
        if self.is_shared and not self.is_lone and not self.rate:
            self._network.flow(self, now_ns)
        else:
            self._network.end(self, now_ns)


class Network:
    """The links of all instances.

    Args:
        members: the instances by index. Those of a pool fill its nodes in this order.
        link_of: the link between two instances.
    """

    def __init__(
        self, events: EventQueue, members: Sequence[Member], link_of: Callable[[int, int], Link]
    ) -> None:
        self._events, self._members, self._link_of = events, members, link_of
        self._ports: dict[Hashable, Port] = {}
        self._paths: dict[tuple[int, int], Path] = {}
        self.sent_bytes = self.cancelled_bytes = 0
        """Bytes of all transfers, and of those that were stopped."""
        self.moved_bytes = 0
        """Bytes of the transfers that have ended."""
        self.under_way = 0
        """Transfers that have not ended."""

    def send(self, size_bytes: int, source: int, target: int, done: Done, tag: Any = None) -> Transfer:
        """Begin a transfer now, from an instance to another."""
        now_ns = self._events.now_ns
        ends = source, target
        path = self._paths.get(ends)
        if path is None:
            link = self._link_of(source, target)
            path = self._paths[ends] = Path(self._ports_of(source, target, link), link)
        transfer = Transfer(self, size_bytes, now_ns, path.ports, done, tag)
        wire_ns = ceil(size_bytes / path.rate) if path.ports else 0
        transfer.alone_ns = path.latency_ns + wire_ns
        self.under_way += 1
        self.sent_bytes += size_bytes
        at_ns = now_ns + transfer.alone_ns
        if wire_ns > 0 and path.contended:
            transfer.is_shared, transfer.flow_ns = True, now_ns + path.latency_ns
            if not self._enter(transfer):
                at_ns = transfer.flow_ns
        self._events.schedule(transfer, at_ns)
        return transfer

    def _enter(self, transfer: Transfer) -> bool:
        """Add a transfer to the links that it shares; returns whether it is the only one there."""
        alone = True
        for port in transfer.ports:
            alone = alone and not port.users
            port.users += 1
        if alone:
            transfer.is_lone = True
            for port in transfer.ports:
                port.lone = transfer
        return alone

    def _meet(self, lone: Transfer, now_ns: int) -> None:
        """Let a transfer that was alone so far share its links."""
        lone.is_lone = False
        for port in lone.ports:
            port.lone = None
        if lone.flow_ns > now_ns:
            self._events.schedule(lone, lone.flow_ns)
            return
        lone.rate = min([port.rate for port in lone.ports])
        for port in lone.ports:
            port.flows[lone] = None

    def cancel(self, transfer: Transfer) -> None:
        """Stop a transfer that has not ended."""
        transfer.cancel()
        self.under_way -= 1
        self.cancelled_bytes += transfer.size_bytes
        self._leave(transfer, self._events.now_ns)

    def flow(self, transfer: Transfer, now_ns: int) -> None:
        """Begin to move its bytes."""
        transfer.flow_ns = now_ns
        for port in transfer.ports:
            if port.lone is not None:
                self._meet(port.lone, now_ns)
            port.flows[transfer] = None
        self._share(transfer, now_ns)

    def end(self, transfer: Transfer, now_ns: int) -> None:
        """Handle that all its bytes have arrived."""
        self.under_way -= 1
        self.moved_bytes += transfer.size_bytes
        self._leave(transfer, now_ns)
        transfer.done(transfer, now_ns)

    def _leave(self, transfer: Transfer, now_ns: int) -> None:
        if not transfer.is_shared:
            return
        for port in transfer.ports:
            port.users -= 1
            if transfer.is_lone:
                port.lone = None
            elif transfer.rate:
                del port.flows[transfer]
        if transfer.rate:
            self._share(transfer, now_ns)

    def _share(self, changed: Transfer, now_ns: int) -> None:
        """Recompute the rates of all transfers connected by links to one that began or ended."""
        flowing = 0
        for port in changed.ports:
            flowing = max(flowing, len(port.flows))
        if not flowing:
            return
        if flowing == 1 and changed in changed.ports[0].flows:  # alone on all its links
            self._set_rate(changed, min([port.rate for port in changed.ports]), now_ns)
            return
        ports = dict.fromkeys(changed.ports)
        queue, flows = list(ports), dict[Transfer, None]()
        while queue:
            for flow in queue.pop().flows:
                if flow in flows:
                    continue
                flows[flow] = None
                for port in flow.ports:
                    if port not in ports:
                        ports[port] = None
                        queue.append(port)
        for flow, rate in fair(list(flows), list(ports)).items():
            if rate != flow.rate:
                self._set_rate(flow, rate, now_ns)

    def _set_rate(self, flow: Transfer, rate: float, now_ns: int) -> None:
        flow.left = max(0.0, flow.left - flow.rate * (now_ns - flow.flow_ns))
        flow.rate, flow.flow_ns = rate, now_ns
        end_ns = min(now_ns + ceil(flow.left / rate), NEVER_NS)
        self._events.schedule(flow, end_ns)

    def _ports_of(self, source: int, target: int, link: Link) -> list[Port]:
        if link.bandwidth_gbps is None:
            return []
        ends = [("out", source)] if link.one_sided else [("out", source), ("in", target)]
        ports = []
        for way, index in ends:
            gpus = self._members[index].pool.spec.gpus
            rate = link.bandwidth_gbps * link.efficiency
            ports.append(self._port((way, index, rate), rate * gpus))
            if link.node_gbps is not None:
                rate = link.node_gbps * link.efficiency
                nodes = max(1, -(-gpus // link.gpus_per_node))
                ports.append(self._port((way, *self._node(index, link), rate), rate * nodes))
        return ports

    def _node(self, index: int, link: Link) -> tuple[str, int]:
        """Pool and number of the node of an instance."""
        pool = self._members[index].pool
        before = sum([member.pool.name == pool.name for member in self._members[:index]])
        return pool.name, before // max(1, link.gpus_per_node // pool.spec.gpus)

    def _port(self, key: Hashable, rate: float) -> Port:
        port = self._ports.get(key)
        if port is None:
            self._ports[key] = port = Port(rate)
        return port


def fair(flows: Sequence[Transfer], ports: Sequence[Port]) -> dict[Transfer, float]:
    """Max-min fair rates: the link with the least for each of its transfers fixes theirs, then the next."""
    for port in ports:
        port.left, port.open = port.rate, len(port.flows)
    rates: dict[Transfer, float] = {}
    while len(rates) < len(flows):
        tightest, share = ports[0], -1.0
        for port in ports:
            if port.open and (share < 0.0 or port.left / port.open < share):
                tightest, share = port, port.left / port.open
        for flow in tightest.flows:
            if flow in rates:
                continue
            rates[flow] = share
            for port in flow.ports:
                port.left = max(0.0, port.left - share)
                port.open -= 1
    return rates
