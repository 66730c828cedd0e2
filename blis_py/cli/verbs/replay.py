"""`blis replay`: simulate the requests of a trace, at the times they came."""

from __future__ import annotations

from blis_py.cli.flags import blis_flags, vllm_flags
from blis_py.cli.flags.flag import Flags
from blis_py.cli.flags.options import COMMON, OUTPUT, WORKLOAD
from blis_py.cli.verbs._execute import execute
from blis_py.errors import InputError

_SCALES = tuple(flag for flag in WORKLOAD if flag.name in ("--rate", "--num-requests", "--think-time-ms"))
_GENERATES = tuple(flag._replace(hidden=True) for flag in WORKLOAD if flag not in _SCALES)

GROUPS = (
    *COMMON,
    ("Output", OUTPUT),
    ("Workload", (*_SCALES, *_GENERATES)),
    vllm_flags.FLAGS,
    blis_flags.FLAGS,
)


def replay(flags: Flags) -> None:
    """Simulate the requests of a trace, at the times they came, until the last is done."""
    for flag in _GENERATES:
        if flag.name in flags:
            raise InputError(
                "generates requests, but a replay takes them from its trace",
                key=flag.name,
                fix="use --client-timeout" if flag.name == "--timeout" else "use `blis run`",
            )
    execute(flags, needs_trace=True)
