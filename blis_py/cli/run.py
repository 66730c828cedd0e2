"""`blis run`: simulate a workload."""

from __future__ import annotations

from blis_py.cli import blis_flags, vllm_flags
from blis_py.cli._execute import execute
from blis_py.cli.flag import Flags
from blis_py.cli.options import COMMON, OUTPUT, WORKLOAD

GROUPS = (*COMMON, ("Workload", WORKLOAD), ("Output", OUTPUT), vllm_flags.FLAGS, blis_flags.FLAGS)


def run(flags: Flags) -> None:
    """Simulate a workload: generated, from a spec, or from a trace."""
    execute(flags)
