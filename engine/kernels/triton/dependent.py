"""The device's side of programmatic dependent launch; see `engine.kernels.dependent`."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from engine.kernels.dependent import dependent_launches
from engine.kernels.triton.autotune import INTERPRETED

ON_DEVICE = tl.constexpr(not INTERPRETED)


@triton.jit
def await_memory(DEPENDENT: tl.constexpr):
    """Wait of a kernel that is launched early; to be called before its first access to memory."""
    if DEPENDENT and ON_DEVICE:
        gdc_wait()
        gdc_launch_dependents()


def launch_options() -> dict[str, Any]:
    """Keyword arguments of the launch of a kernel that has a parameter DEPENDENT."""
    on = dependent_launches()
    return {"DEPENDENT": on, "launch_pdl": True} if on and not INTERPRETED else {"DEPENDENT": on}
