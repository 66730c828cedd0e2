"""Flags of BLIS that blis-py does not have yet: each is recognised, and none is ignored.

BLIS's own default asks for nothing that blis-py would do differently, so it is accepted; every other
value is an error.
"""

from __future__ import annotations

from blis_py.cli.flags.flag import Flag, Flags, Group
from blis_py.errors import InputError

_DEFAULTS: dict[str, str | None] = {
    "--defaults-filepath": None,
    "--dp": "1",
    "--encode-decider": "never",
    "--encode-instances": "0",
    "--hardware-config": None,
    "--kv-cpu-blocks": "0",
    "--kv-offload-config": None,
    "--kv-offload-threshold": "0.9",
    "--kv-transfer-bandwidth": "100",
    "--kv-transfer-base-latency": "0",
    "--lora-adapter-capacity": "0",
    "--lora-config": None,
    "--lora-footprint-bytes-per-rank": "0",
    "--lora-load-bandwidth-bytes-us": "0",
    "--lora-load-base-latency-us": "0",
    "--lora-scorer-weight": "0",
    "--model-autoscaler-interval-us": "0",
    "--moe-comm-backend": None,
}
"""The value that changes nothing; None where every value asks for something."""

_INSTEAD: dict[str, str] = {
    "--defaults-filepath": "name the GPU and the TP degree with --gpu and --tp",
    "--hardware-config": "give a GPU file with --gpu FILE",
    "--encode": "instances that encode pictures are not simulated; drop it",
    "--kv": "KV caches in host memory and on disks are not simulated; drop it",
    "--lora": "LoRA adapters are not simulated; drop it",
    "--model-autoscaler": "the number of instances does not change; drop it",
    "--dp": "give --attention-dp, or --num-instances for replicas of whole models",
    "--moe-comm": "the exchange among experts follows --engine; drop it",
}
"""By how a flag begins: what is missing, and what to do."""

_WITHOUT_EFFECT = ("--lazy-generation", "--log")
"""Accepted with any value: the workload is a table in any case, and there is no log to be more or less
talkative."""

FLAGS: Group = (
    "BLIS",
    (
        *(Flag(name, str, "", hidden=True) for name in _DEFAULTS),
        Flag("--lazy-generation", bool, "", hidden=True),
        Flag("--log", str, "", hidden=True),
    ),
)


def refuse(flags: Flags) -> None:
    """Raises `InputError` on the first flag that asks for something blis-py does not do."""
    for name, value in flags.items():
        if name in _DEFAULTS and not _same(str(value), _DEFAULTS[name]):
            raise InputError(
                "is a BLIS flag that blis-py does not have yet",
                key=name,
                value=value,
                fix=next((fix for begin, fix in _INSTEAD.items() if name.startswith(begin)), None),
            )


def _same(value: str, default: str | None) -> bool:
    if default is None:
        return False
    try:
        return float(value) == float(default)
    except ValueError:
        return value == default
