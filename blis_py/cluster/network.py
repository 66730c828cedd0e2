"""Transfers of KV between instances over contended links.

Every instance has a link out and a link in, of all its GPUs together, and every node one of each as well if
its adapters are fewer than that. A transfer crosses two to four of them; bandwidth is shared max-min fairly
(each link equally among its transfers, and what a transfer cannot use goes to the others), recomputed at
every begin and end of a transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import ceil

from blis_py.cluster.events import Call, EventQueue
from blis_py.cluster.fleet import Member
from blis_py.cluster.topology import Link
from blis_py.core.request import NEVER_NS

Done = Callable[[int], None]
"""Called with the time at which a transfer ends."""


class _Port:
    """One direction of a link: of an instance, or of a node.

    Args:
        rate: bytes per ns.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.flows: dict[Transfer, None] = {}


class Transfer:
    """Bytes on their way from one instance to another."""

    __slots__ = ("_call", "alone_ns", "begin_ns", "done", "flow_ns", "left", "ports", "rate", "size_bytes")

    def __init__(self, size_bytes: int, begin_ns: int, ports: Sequence[_Port], done: Done) -> None:
        self.size_bytes = size_bytes
        self.begin_ns = begin_ns
        self.done = done
        self.ports = ports
        self.left = float(size_bytes)
        """Bytes that have not arrived, as of `flow_ns`."""
        self.rate = 0.0
        """Bytes per ns; 0 before its bytes begin to flow."""
        self.flow_ns = begin_ns
        self.alone_ns = 0
        """Its duration on idle links."""
        self._call: Call | None = None

    def schedule(self, events: EventQueue, time_ns: int, action: Callable[[int], None]) -> None:
        """Replace its next event."""
        if self._call is not None:
            self._call.cancel()
        self._call = events.call_at(time_ns, action)

    def stop(self) -> None:
        """Cancel its next event."""
        if self._call is not None:
            self._call.cancel()


class Network:
    """The links of all instances.

    Args:
        members: the instances by index. Those of a pool fill its nodes in this order.
    """

    def __init__(self, events: EventQueue, members: Sequence[Member]) -> None:
        self._events, self._members = events, members
        self._ports: dict[Hashable, _Port] = {}
        self.moved_bytes = 0
        """Bytes of the transfers that have ended."""
        self.under_way = 0
        """Transfers that have not ended."""

    def send(self, size_bytes: int, source: int, target: int, link: Link, done: Done) -> Transfer:
        """Begin a transfer now, from an instance to another."""
        now_ns = self._events.now_ns
        ports = self._ports_of(source, target, link)
        transfer = Transfer(size_bytes, now_ns, ports, done)
        rate = min((port.rate for port in ports), default=0.0)
        wire_ns = ceil(size_bytes / rate) if rate else 0
        transfer.alone_ns = link.latency_ns + wire_ns
        self.under_way += 1
        if not wire_ns or not link.contended:
            end_ns = now_ns + transfer.alone_ns
            transfer.schedule(self._events, end_ns, lambda now_ns: self._end(transfer, now_ns))
        else:
            flow_ns = now_ns + link.latency_ns
            transfer.schedule(self._events, flow_ns, lambda now_ns: self._flow(transfer, now_ns))
        return transfer

    def cancel(self, transfer: Transfer) -> None:
        """Stop a transfer that has not ended."""
        transfer.stop()
        self.under_way -= 1
        if transfer.rate:
            self._leave(transfer, self._events.now_ns)

    def _flow(self, transfer: Transfer, now_ns: int) -> None:
        transfer.flow_ns = now_ns
        for port in transfer.ports:
            port.flows[transfer] = None
        self._share(transfer, now_ns)

    def _end(self, transfer: Transfer, now_ns: int) -> None:
        self.under_way -= 1
        self.moved_bytes += transfer.size_bytes
        if transfer.rate:
            self._leave(transfer, now_ns)
        transfer.done(now_ns)

    def _leave(self, transfer: Transfer, now_ns: int) -> None:
        for port in transfer.ports:
            del port.flows[transfer]
        self._share(transfer, now_ns)

    def _share(self, changed: Transfer, now_ns: int) -> None:
        """Recompute the rates of all transfers connected by links to one that began or ended."""
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
        for flow, rate in _fair(list(flows), list(ports)).items():
            if rate != flow.rate:
                self._set_rate(flow, rate, now_ns)

    def _set_rate(self, flow: Transfer, rate: float, now_ns: int) -> None:
        flow.left = max(0.0, flow.left - flow.rate * (now_ns - flow.flow_ns))
        flow.rate, flow.flow_ns = rate, now_ns
        end_ns = min(now_ns + ceil(flow.left / rate), NEVER_NS)
        flow.schedule(self._events, end_ns, lambda now_ns: self._end(flow, now_ns))

    def _ports_of(self, source: int, target: int, link: Link) -> list[_Port]:
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
        before = sum(member.pool.name == pool.name for member in self._members[:index])
        return pool.name, before // max(1, link.gpus_per_node // pool.spec.gpus)

    def _port(self, key: Hashable, rate: float) -> _Port:
        port = self._ports.get(key)
        if port is None:
            self._ports[key] = port = _Port(rate)
        return port


def _fair(flows: Sequence[Transfer], ports: Sequence[_Port]) -> dict[Transfer, float]:
    """Max-min fair rates: the link with the least for each of its transfers fixes theirs, then the next."""
    left = {port: port.rate for port in ports}
    open_ = {port: len(port.flows) for port in ports}
    rates: dict[Transfer, float] = {}
    while len(rates) < len(flows):
        tightest = min((port for port in ports if open_[port]), key=lambda port: left[port] / open_[port])
        share = left[tightest] / open_[tightest]
        for flow in tightest.flows:
            if flow in rates:
                continue
            rates[flow] = share
            for port in flow.ports:
                left[port] = max(0.0, left[port] - share)
                open_[port] -= 1
    return rates
