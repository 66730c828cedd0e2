"""Clock and power of a GPU, on a stand-in for the driver's library."""

from __future__ import annotations

from typing import Any

from engine.profile.gpu_state import GpuMonitor, GpuState


class Nvml:
    """Answers as the library does: 0 and a number, or an error code.

    Args:
        error: its answer to a query of power.
    """

    def __init__(self, error: int = 0) -> None:
        self._error = error

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return 0 if index.value == 0 else 2

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, found: Any) -> int:
        found._obj.value = {1: 1755, 2: 2619}[kind.value]
        return 0

    def nvmlDeviceGetPowerUsage(self, handle: Any, found: Any) -> int:
        found._obj.value = 412_600
        return self._error


def test_clock_of_the_multiprocessors_in_mhz_and_power_in_watts() -> None:
    assert GpuMonitor(library=Nvml()).read() == GpuState(sm_mhz=1755, power_w=413)


def test_what_the_driver_does_not_answer_is_not_known() -> None:
    assert GpuMonitor(library=Nvml(error=3)).read() == GpuState(sm_mhz=1755, power_w=0)
    assert GpuMonitor(index=1, library=Nvml()).read() == GpuState()


def test_without_a_driver_nothing_is_known() -> None:
    assert GpuMonitor().read() == GpuState()
