"""Clock and power of a GPU, read through the driver's library in microseconds."""

from __future__ import annotations

from ctypes import CDLL, byref, c_uint, c_void_p
from typing import Any, NamedTuple

_LIBRARY = "libnvidia-ml.so.1"
_SM = 1
"""NVML_CLOCK_SM."""


class GpuState(NamedTuple):
    """State of a GPU; 0 = not known."""

    sm_mhz: int = 0
    power_w: int = 0


class GpuMonitor:
    """Reader of the state of one GPU; without the driver's library, nothing is known.

    Args:
        index: of the GPU among those of the driver.
        library: the driver's library; None = that of this machine.
    """

    def __init__(self, index: int = 0, library: Any = None) -> None:
        self._nvml, self._gpu = library or _load(), c_void_p()
        if self._nvml is not None and not self._open(index):
            self._nvml = None

    def read(self) -> GpuState:
        """The state now."""
        if self._nvml is None:
            return GpuState()
        milliwatts = self._number(self._nvml.nvmlDeviceGetPowerUsage)
        return GpuState(self._number(self._nvml.nvmlDeviceGetClockInfo, c_uint(_SM)), round(milliwatts / 1e3))

    def _open(self, index: int) -> bool:
        nvml = self._nvml
        return not (nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(c_uint(index), byref(self._gpu)))

    def _number(self, call: Any, *arguments: Any) -> int:
        number = c_uint()
        return 0 if call(self._gpu, *arguments, byref(number)) else int(number.value)


def _load() -> Any:
    try:
        return CDLL(_LIBRARY)
    except OSError:
        return None
