"""`blis run`: simulate a workload."""

from __future__ import annotations

from blis_py.cli.flags import blis_flags, vllm_flags
from blis_py.cli.flags.flag import Flags
from blis_py.cli.flags.options import COMMON, OUTPUT, WORKLOAD
from blis_py.cli.verbs._execute import execute

GROUPS = (*COMMON, ("Workload", WORKLOAD), ("Output", OUTPUT), vllm_flags.FLAGS, blis_flags.FLAGS)


def run(flags: Flags) -> None:
    """Simulate a workload: generated, from a spec, or from a trace."""
    execute(flags)
