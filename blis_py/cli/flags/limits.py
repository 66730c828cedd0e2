"""`--ttft 2s`, `--tpot p95=50ms`: targets of `--slo` in the words of AIConfigurator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from blis_py.cli.flags.flag import Flag, Flags

_METRICS = ("ttft", "tpot", "itl", "e2e")
_SLO, _SLO_KEY, _STATISTIC = "--slo", "slo", "p99"
LIMITS = tuple(
    Flag(
        f"--{metric}",
        str,
        "",
        f"Target: {metric.upper()} of p99, or of another statistic: p95=…; bare numbers are ms.",
        ("--request-latency",) if metric == "e2e" else (),
        metavar="LIMIT",
    )
    for metric in _METRICS
)
_NAMES = {spelling: flag.name.removeprefix("--") for flag in LIMITS for spelling in flag.spellings}


def with_limits(given: list[tuple[str, str, Any]], flags: Flags) -> list[tuple[str, str, Any]]:
    """Settings as (flag, key, value), with the limits of single metrics among the targets of `--slo`."""
    limits = list(_targets(flags))
    if not limits:
        return given
    others = [target for _, key, targets in given if key == _SLO_KEY for target in targets]
    name = next((flag for flag, key, _ in given if key == _SLO_KEY), limits[0][0])
    kept = [each for each in given if each[1] != _SLO_KEY]
    return [*kept, (name, _SLO_KEY, [*others, *(target for _, target in limits)])]


def _targets(flags: Flags) -> Iterator[tuple[str, str]]:
    """Each limit with its flag: `2s` is the p99, `p95=2s` another statistic, `2000` in ms."""
    for name, metric in _NAMES.items():
        if name not in flags:
            continue
        for text in str(flags[name]).split(","):
            statistic, equals, limit = text.strip().rpartition("=")
            limit = f"{limit}ms" if _is_number(limit) else limit
            yield name, f"{metric}.{statistic if equals else _STATISTIC}={limit}"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii()
