"""From flags as given to the configuration of a run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from blis_py.cli import vllm_flags
from blis_py.cli.flag import Flag, Flags
from blis_py.cli.options import COMMON, WORKLOAD
from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError

_SETTINGS: tuple[Flag, ...] = (*(flag for _, flags in COMMON for flag in flags), *WORKLOAD)
_FLAGS = {spelling: flag for flag in _SETTINGS for spelling in flag.spellings if flag.key}


def overrides(flags: Flags) -> list[tuple[str, str, Any]]:
    """The settings that flags make, as (flag, key, value)."""
    given = [
        (name, _FLAGS[name].key, _meant(name, _FLAGS[name], value))
        for name, value in flags.items()
        if name in _FLAGS
    ]
    return given + vllm_flags.settings(flags)


def configure(flags: Flags) -> RunConfig:
    """The configuration file (if any) with everything else laid over it."""
    for note in vllm_flags.notes(flags):
        print(f"note: {note}", file=sys.stderr)
    bundle = flags.get("--policy-config")
    config = load_config(
        flags.get("--config"), overrides(flags), sets=flags.get("--set", ()), policy_config=bundle
    )
    if "--summarize-trace" in flags and config.routing.trace_level == "none":
        fix = "add --trace-level decisions"
        raise InputError("needs decisions that are kept", key="--summarize-trace", fix=fix)
    if bundle is not None:
        from blis_py.config.policy import bundle_notes

        by_target = config.gateway.flow_control and config.gateway.dispatch_order == "slo-deadline"
        for note in bundle_notes(bundle, config.routing.policy, config.admission.policy, by_target):
            print(f"note: {note}", file=sys.stderr)
    return config


def _meant(name: str, flag: Flag, value: Any) -> Any:
    """What a value on the command line is in the configuration."""
    if flag.off:
        return False
    if flag.many:
        return _words(value)
    if flag.null is not None and value == flag.null:
        return None
    return _READ[name](name, value) if name in _READ else value


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError("must be numbers", key=name, value=text, fix="write 1,2.5,3") from None


def _shares(name: str, text: str) -> dict[str, float]:
    return _named_shares(name, text, "class", "critical=0.2,standard=0.8")


def _budgets(name: str, text: str) -> dict[str, float]:
    return _named_shares(name, text, "tenant", "acme=0.25,beta=0.1")


def _targets_us(name: str, text: str) -> dict[str, int]:
    targets: dict[str, int] = {}
    for part in text.split(","):
        label, equals, number = (piece.strip() for piece in part.partition("="))
        if not equals or not label or label in targets or not number.isdecimal():
            fix = "write critical=150000,standard=600000"
            raise InputError("must give each class once with its target in µs", key=name, value=text, fix=fix)
        targets[label] = int(number)
    return targets


def _zero_is_the_usual(name: str, value: int) -> int:
    """BLIS's 0 is its default interval."""
    return value or 1000


def _named_shares(name: str, text: str, what: str, example: str) -> dict[str, float]:
    shares: dict[str, float] = {}
    for part in text.split(","):
        label, equals, number = (piece.strip() for piece in part.partition("="))
        try:
            share = float(number)
        except ValueError:
            equals = ""
        if not equals or not label or label in shares:
            problem = f"must give each {what} once with its share"
            raise InputError(problem, key=name, value=text, fix=f"write {example}")
        shares[label] = share
    return shares


def _weights(name: str, text: str) -> dict[str, float]:
    weights: dict[str, float] = {}
    for part in text.split(","):
        label, colon, number = (piece.strip() for piece in part.partition(":"))
        try:
            weight = float(number)
        except ValueError:
            colon = ""
        if not colon or not label or label in weights:
            fix = "write queue-depth:1,kv-utilization:2"
            raise InputError("must give each scorer once with its weight", key=name, value=text, fix=fix)
        weights[label] = weight
    return weights


def _roles(name: str, text: str) -> dict[str, str]:
    roles: dict[str, str] = {}
    for part in text.split(","):
        role, equals, column = (piece.strip() for piece in part.partition("="))
        if not (role and equals and column) or role in roles:
            fix = "write arrival=ts,input=prompt_len,output=answer_len"
            raise InputError("must give each role once with its column", key=name, value=text, fix=fix)
        roles[role] = column
    return roles


def _words(texts: list[str]) -> list[str]:
    return [word for text in texts for word in text.replace(",", " ").split()]


def _largest_is_never(name: str, value: str) -> str | None:
    """BLIS's default horizon, the largest 64-bit number, is its way to say none."""
    return None if value == str(2**63 - 1) else value


def _negative_is_endless(name: str, value: float) -> float | None:
    if value == 0:
        raise InputError(
            "must not be 0", key=name, fix="give seconds, or a negative value for endless patience"
        )
    return None if value < 0 else value


_READ: dict[str, Callable[[str, Any], Any]] = {
    "--alpha-coeffs": _numbers,
    "--beta-coeffs": _numbers,
    "--frontend-ms": _numbers,
    "--slo-shares": _shares,
    "--tenant-budgets": _budgets,
    "--routing-scorers": _weights,
    "--prefill-routing-scorers": _weights,
    "--decode-routing-scorers": _weights,
    "--slo-targets": _targets_us,
    "--dispatch-tick-interval": _zero_is_the_usual,
    "--columns": _roles,
    "--horizon": _largest_is_never,
    "--timeout": _negative_is_endless,
}
"""Flags whose texts name several things, or whose numbers have a meaning of BLIS's."""
