"""Prefill and decode on different instances in the configuration: instances of each side, hand-over and link.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, NamedTuple, TypeVar

from blis_py.cluster.handoff_settings import GPUS_PER_NODE, AfterLease, PairChoice, Transfers
from blis_py.config.pools import PoolSection
from blis_py.core.bounds import LAST_NS, MAX_INSTANCES, MAX_KV_BLOCKS, MAX_TOKENS
from blis_py.core.flag_texts import scorers
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting
from blis_py.errors import InputError

_LAST_MS = LAST_NS / 10**6
WITHOUT_POOLS: dict[str, Any] = {"decider": "never", "bandwidth_gbps": 25.0, "latency_ms": 0.05}
"""Values that demand nothing without pools for prefill or decode: defaults of BLIS."""
ROLES = {"prefill": "prefill_instances", "decode": "decode_instances", "shared": "shared_instances"}
"""Name of each pool, and the setting with its number of instances."""
_SIDES = ("prefill", "decode")


class _Own(NamedTuple):
    """A setting that each side's instances have for themselves; null = as the configuration has it."""

    kind: Any
    key: str
    """Key of a pool that it sets."""
    flags: tuple[str, ...]
    """Flag and aliases, without the side."""
    help: str
    options: dict[str, Any]
    """Further arguments of `setting`."""

    def of(self, side: str) -> Any:
        """The setting of one side."""
        flag, *aliases = [f"--{side}-{flag}" for flag in self.flags]
        text = self.help.format(side=side)
        return setting(None, flag=flag, aliases=tuple(aliases), help=text, **self.options)


def _own(kind: Any, key: str, *flags: str, help: str, **options: Any) -> _Own:
    return _Own(kind | None, key, flags, help, options)


_OWN = {
    "gpu": _own(str, "gpu", "gpu", "hardware", help="GPU of the {side} instances."),
    "price_per_hour": _own(
        float,
        "price_per_hour",
        "price",
        help="Price of one of them per hour, with all its GPUs.",
        least=0,
        most=1e9,
    ),
    "tp": _own(
        int, "tp", "tp", help="Their tensor-parallel degree; 0 = as --tp.", least=1, most=4096, null=0
    ),
    "attention_dp": _own(
        int,
        "attention_dp",
        "attention-dp",
        "dp-size",
        help="Replicas of attention of each of them.",
        least=1,
        most=4096,
    ),
    "ep": _own(int, "ep", "ep", "ep-size", help="Groups of experts of each of them.", least=1, most=4096),
    "engine": _own(str, "engine", "engine", help="Their engine."),
    "latency_model": _own(str, "latency.model", "latency-model", help="Their step times."),
    "max_model_len": _own(
        int,
        "scheduler.max_model_len",
        "max-model-len",
        help="Their longest sequence.",
        least=1,
        most=MAX_TOKENS,
        null=0,
    ),
    "num_kv_blocks": _own(
        int, "scheduler.num_kv_blocks", "num-kv-blocks", help="Their KV blocks.", least=1, most=MAX_KV_BLOCKS
    ),
    "max_num_seqs": _own(
        int,
        "scheduler.max_num_seqs",
        "max-num-seqs",
        help="Their running requests, at most.",
        least=1,
        most=MAX_TOKENS,
    ),
    "max_num_batched_tokens": _own(
        int,
        "scheduler.max_num_batched_tokens",
        "max-num-batched-tokens",
        help="Tokens of their steps.",
        least=1,
        most=MAX_TOKENS,
    ),
    "routing_policy": _own(str, "routing_policy", "routing-policy", help="Choice among them."),
    "routing_scorers": _own(
        dict[str, float],
        "routing_scorers",
        "routing-scorers",
        help="Its scorers; implies weighted.",
        read=scorers,
        metavar="NAME:W,…",
    ),
}
"""Settings of both sides, by the end of their keys: `prefill_tp` and `decode_tp`."""
_T = TypeVar("_T")


def _with_sides(section: type[_T]) -> type[_T]:
    """Declare the settings of `_OWN` for each side."""
    section.__annotations__ = {f"{side}_{name}": own.kind for side in _SIDES for name, own in _OWN.items()}
    for side in _SIDES:
        for name, own in _OWN.items():
            setattr(section, f"{side}_{name}", own.of(side))
    return section


def _instances(flag: str, help: str) -> Any:
    return setting(0, least=0, most=MAX_INSTANCES, flag=flag, help=help)


def split_xpyd(text: str) -> tuple[int, int, int]:
    """Prefill, decode and shared instances of `2p1d` or `3`.

    Raises:
        InputError: it is neither.
    """
    match = re.fullmatch(r"(\d{1,5})p(\d{1,5})d|(\d{1,5})", text.strip(), re.ASCII)
    counts = tuple(int(part or 0) for part in match.groups()) if match else ()
    if len(counts) != 3 or not (counts[2] or counts[0] * counts[1]):
        fix = "write 2p1d, or a number of instances that do both"
        raise InputError("must be a number of instances of each side", key="--xpyd", value=text, fix=fix)
    return counts[0], counts[1], counts[2]


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _SidesAndHandoff:
    prefill_instances: int = _instances("--prefill-instances", "Instances for prefill.")
    """Instances that compute prompts; 0 with `decode_instances` 0 = prefill and decode are not apart."""
    decode_instances: int = _instances("--decode-instances", "Instances for decode.")
    """Instances that decode."""
    shared_instances: int = _instances("--prefill-decode-instances", "Instances for both, beside them.")
    """Instances that do both, beside them; configured as those for decode."""
    xpyd: str | None = setting(
        None, flag="--xpyd", help="Both numbers in short: 2p1d; 3 = three that do both.", metavar="XpYd"
    )
    """Both numbers in short, instead of the three above: `2p1d`; `3` = three instances that do both."""
    handoff: str | None = setting(
        None,
        flag="--handoff",
        help="Whose: vllm, sglang, trtllm, trtllm-generation-first, blis. Default: the engine's.",
        metavar="NAME",
    )
    """Engine of the hand-over: `vllm`, `sglang`, `trtllm`, `trtllm-generation-first`, `blis`, or an
    installed one; null = that of the engine preset, else `vllm`."""
    decider: str | None = setting(
        None,
        flag="--pd-decider",
        help="Which requests: always (default), never, prefix-threshold, load.",
        metavar="NAME",
    )
    """Which requests prefill and decode apart: `always`, `never`, `prefix-threshold`, `load`, or one that is
    installed; null = `always`, with the hand-over `blis` `never`."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LinkSettings:
    link: str | None = setting(
        None, flag="--pd-link", help="nvlink, ndr400 (default), roce200, eth100, eth25.", metavar="KIND"
    )
    """Kind of link between the two sides: `nvlink`, `ndr400`, `roce200`, `eth100`, `eth25`, `blis`; null =
    `ndr400`, with the hand-over `blis` `blis`."""
    bandwidth_gbps: float | None = setting(
        None,
        above=0,
        most=1e6,
        flag="--pd-transfer-bandwidth",
        help="GB/s of each GPU, instead of the link kind's.",
    )
    """GB/s of each GPU's link on paper; null = that of the link kind."""
    latency_ms: float | None = setting(
        None,
        least=0,
        most=_LAST_MS,
        flag="--pd-transfer-base-latency",
        help="Set-up of a transfer, ms, instead of the link kind's.",
    )
    """Set-up of a transfer; null = that of the link kind."""
    efficiency: float | None = setting(
        None, above=0, most=1, flag="--pd-link-efficiency", help="Share of the bandwidth that is attained."
    )
    """Share of the bandwidth that a transfer attains; null = that of the link kind, 1 with a bandwidth of
    one's own."""
    node_gbps: float | None = setting(
        None, above=0, most=1e6, flag="--pd-node-bandwidth", help="GB/s of a node, of all its GPUs."
    )
    """GB/s of a node's adapters together; null = as much as its GPUs have."""
    gpus_per_node: int = setting(
        GPUS_PER_NODE, least=1, most=4096, flag="--pd-gpus-per-node", help="GPUs of a node."
    )
    """GPUs of a node, for `node_gbps`; a pool fills its nodes in order."""
    contended: bool | None = setting(
        None,
        flag="--pd-transfer-contention",
        off="--no-pd-transfer-contention",
        help="Transfers share the links; the default, but for --handoff blis.",
    )
    """Whether transfers at the same time share the links; null = they do, except with the hand-over
    `blis`."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class _LeaseSeconds:
    lease_s: float | None = setting(
        None,
        above=0,
        most=_LAST_MS / 1000,
        flag="--kv-lease-duration",
        help="With vllm: s that unread KV is kept.",
    )
    """With `vllm`: how long a prefill instance keeps KV that is not being read; null = until it is read, as
    with heartbeats."""


@dataclass(frozen=True, kw_only=True)
@_with_sides
class DisaggregationSection(AfterLease, _LeaseSeconds, Transfers, LinkSettings, PairChoice, _SidesAndHandoff):
    """Prefill and decode of a request on different instances."""

    @property
    def counts(self) -> dict[str, int]:
        """Instances by the name of their pool."""
        if self.xpyd is None:
            return {name: getattr(self, setting) for name, setting in ROLES.items()}
        prefill, decode, shared = split_xpyd(self.xpyd)
        return {"prefill": prefill, "decode": decode, "shared": shared}

    @property
    def instances(self) -> int:
        """Number of instances in all its pools; 0 = prefill and decode are not apart, or `pools` has both."""
        return sum(self.counts.values())

    def pools(self) -> tuple[PoolSection, ...]:
        """The pools that its settings come to."""
        counts = self.counts
        return tuple(self._pool(name, count) for name, count in counts.items() if count)

    def _pool(self, name: str, count: int) -> PoolSection:
        side = "prefill" if name == "prefill" else "decode"
        values: dict[str, Any] = {}
        for end, own in _OWN.items():
            value = getattr(self, f"{side}_{end}")
            section, _, leaf = own.key.rpartition(".")
            if value is not None:
                (values.setdefault(section, {}) if section else values)[leaf] = value
        if values.get("routing_scorers"):
            values.setdefault("routing_policy", "weighted")
        return PoolSection(name=name, role="both" if name == "shared" else name, count=count, **values)


def pools_in(settings: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The pools of a configuration as plain data, or those of prefill and decode; empty = alike instances."""
    if settings.get("pools"):
        return list(settings["pools"])
    known = {field.name for field in fields(DisaggregationSection)}
    given = settings.get("disaggregation") or {}
    section = DisaggregationSection(**{key: value for key, value in given.items() if key in known})
    return [asdict(pool) for pool in section.pools()]
