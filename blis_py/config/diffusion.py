"""The settings of block diffusion: the section `dllm`.

Annotations are evaluated here and no later, as in `models`.
"""

from blis_py.config.kinds import KindSection
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting

_HOUR_US = 3.6e9


@dataclass(frozen=True, kw_only=True)
class DllmSection:
    """Block diffusion: how the blocks of a workload of `kind: diffusion` are executed."""

    workload: str | None = setting(
        None, flag="--dllm-workload", help="Make all requests diffusion requests.", metavar="FILE"
    )
    """YAML with `kind: diffusion` that holds for all requests of a trace, or of the flags."""
    algorithm: str | None = setting(
        None, flag="--dllm-algorithm", help="Whose step counts of the workload. Default its first."
    )
    """Algorithm whose step counts to take, where the workload has those of several; null = the first."""
    config: str | None = setting(
        None, flag="--dllm-config", help="Parameters of the algorithm (YAML).", metavar="FILE"
    )
    """YAML with parameters of the algorithm that its step counts must have been measured with."""
    fdfo: bool = setting(
        True,
        flag="--dllm-fdfo",
        off="--no-dllm-fdfo",
        help="First done, first out.",
        off_help="A batch runs until all its blocks are final.",
    )
    """First done, first out; false = a batch runs until all its blocks are final."""
    in_place_reuse: bool = setting(
        True,
        flag="--dllm-in-place-reuse",
        off="--no-dllm-in-place-reuse",
        off_help="An unfinished block releases slot and KV blocks after every batch.",
    )
    """An unfinished block keeps its request slot and KV blocks."""
    re_loop: bool = setting(
        True, flag="--dllm-re-loop", off="--no-dllm-re-loop", off_help="Call the scheduler after every round."
    )
    """Another round without the scheduler while no block is final and no request can join the batch."""
    schedule_us: float = setting(
        0.0, least=0, most=_HOUR_US, flag="--dllm-schedule-us", help="Cost of a call of the scheduler, µs."
    )
    """Host time of a return to the scheduler, on top of the latency model's steps: what `re_loop` saves."""
    allocator_call_us: float = setting(
        0.0, least=0, most=_HOUR_US, flag="--dllm-allocator-us", help="Cost of an allocator call, µs."
    )
    """Host time to take or give back a slot or KV blocks: what `in_place_reuse` saves."""


DLLM = KindSection(
    "Block diffusion",
    files=("workload", "config"),
    description="workload",
    also_called={"fdfo": "dllm_fdfo"},
)
