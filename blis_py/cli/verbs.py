"""The verbs of `blis`, each of them a module here."""

from __future__ import annotations

from collections.abc import Sequence

VERBS = (
    "run",
    "replay",
    "plan",
    "sweep",
    "convert",
    "compose",
    "plot",
    "explain",
    "compare",
    "calibrate",
    "parity",
    "models",
    "gpus",
    "engines",
)
FURTHER = ("profile", "engine")
"""Verbs that have verbs of their own."""


def spread(arguments: list[str], many: Sequence[str] = ("--goodput", "--slo", "--vary")) -> list[str]:
    """`--goodput ttft:500 tpot:50`, as vLLM takes it, with the flag before every value."""
    result: list[str] = []
    flag = None
    for argument in arguments:
        if argument.startswith("-"):
            flag = argument if argument in many else None
        elif flag is not None and result[-1] != flag:
            result.append(flag)
        result.append(argument)
    return result
