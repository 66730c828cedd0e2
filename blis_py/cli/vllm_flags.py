"""Flags of `vllm serve` and `vllm bench serve` beyond those that have a setting here: none is ignored.

A value that changes nothing is accepted; what cannot be honoured is refused by its name.
"""

from __future__ import annotations

import math
from typing import Any

from blis_py.cli.options import Flag, Flags, Group
from blis_py.errors import InputError

_UNCHANGING: dict[str, tuple[str, ...]] = {
    "--data-parallel-size": ("1",),
    "--dtype": ("auto", "bfloat16", "float16", "half"),
    "--kv-cache-dtype": ("auto",),
    "--max-long-partial-prefills": ("1",),
    "--max-num-partial-prefills": ("1",),
    "--pipeline-parallel-size": ("1",),
    "--speculative-config": (),
    "--quantization": (),
    "--swap-space": ("0",),
}
_INSTEAD = {
    "--data-parallel-size": "simulate so many instances with --num-instances",
    "--quantization": "give the quantised model's config.json with --model-config",
}
_SWITCHES = ("--enforce-eager", "--no-enable-chunked-prefill")
"""Change what an engine does, and are not simulated."""
_WITHOUT_EFFECT = ("--host", "--port", "--served-model-name", "--tokenizer", "--base-url", "--endpoint")
_IDLE = ("--trust-remote-code", "--disable-log-requests", "--enable-chunked-prefill")

FLAGS: Group = (
    "vLLM",
    (
        *(Flag(name, str, "", hidden=True) for name in (*_UNCHANGING, *_WITHOUT_EFFECT)),
        *(Flag(name, bool, "", hidden=True) for name in (*_SWITCHES, *_IDLE)),
        Flag(
            "--request-rate",
            float,
            "",
            "As --rate; inf = as fast as --max-concurrency allows.",
            metavar="RATE",
        ),
        Flag("--max-concurrency", int, "", "As --concurrency; of BLIS's engine, its detector's limit."),
        Flag("--scheduling-policy", str, "", "fcfs or priority, as --scheduler fcfs or priority-fcfs."),
    ),
)
_POLICIES = {"fcfs": "fcfs", "priority": "priority-fcfs"}
_OF_THE_DETECTOR = 100
"""BLIS's default of `--max-concurrency`, which limits nothing without a saturation detector."""


def refuse(flags: Flags) -> None:
    """
    Raises:
        InputError: the first flag that asks for something that is not simulated.
    """
    for name, value in flags.items():
        unchanging = _UNCHANGING.get(name)
        if name in _SWITCHES or (unchanging is not None and value not in unchanging):
            raise InputError(
                "is a flag of vLLM that cannot be honoured",
                key=name,
                value=None if value is True else value,
                fix=_INSTEAD.get(name, "drop it"),
            )


def settings(flags: Flags) -> list[tuple[str, str, Any]]:
    """What vLLM's own flags set, as (flag, key, value).

    Raises:
        InputError: a policy that vLLM does not have; an endless rate without a limit; under `--engine blis`,
            a limit of the detector that would have an effect.
    """
    found: list[tuple[str, str, Any]] = []
    if "--scheduling-policy" in flags:
        name = flags["--scheduling-policy"]
        if name not in _POLICIES:
            raise InputError(
                "unknown value", key="--scheduling-policy", value=name, fix="use fcfs or priority"
            )
        found.append(("--scheduling-policy", "scheduler.policy", _POLICIES[name]))
    permits = flags.get("--max-concurrency")
    if permits is not None and flags.get("--engine") != "blis":
        found.append(("--max-concurrency", "workload.concurrency", permits))
    elif permits not in (None, _OF_THE_DETECTOR):
        fix = "limit the client's requests with --concurrency"
        problem = "is the limit of BLIS's saturation detector, which blis-py does not have yet"
        raise InputError(problem, key="--max-concurrency", value=permits, fix=fix)
    rate = flags.get("--request-rate")
    if rate is not None and math.isfinite(rate):
        found.append(("--request-rate", "workload.rate", rate))
    elif rate is not None and not {"--concurrency", "--max-concurrency"} & flags.keys():
        fix = "add --max-concurrency, or give a finite rate"
        raise InputError("would send everything at once", key="--request-rate", value=rate, fix=fix)
    return found
