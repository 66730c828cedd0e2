"""The launching side (CPU-L): carries out what the scheduling side (CPU-S) hands over, one after another.

An operation copies inputs to the device, or runs a forward and samples. Whoever hands it over gets a ticket,
and goes on. On CUDA the operation is launched at once and the device does the work behind the host's back; on
the CPU a worker thread does it. What is handed over later begins later: there is one stream.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ticket(Protocol[T_co]):
    """Of an operation that has been handed over."""

    def wait(self) -> T_co:
        """Its result, when the device is done with it; raises what it raised."""
        ...


class LaunchSide(Protocol):
    """Carries out operations in the order in which they are handed over."""

    def submit(self, operation: Callable[[], T], /) -> Ticket[T]: ...

    def recover(self) -> None:
        """The failure of an operation has been dealt with: the next one is carried out again."""
        ...


class Done(Generic[T]):
    """Of an operation that was over when it was handed over."""

    def __init__(self, result: T) -> None:
        self._result = result

    def wait(self) -> T:
        return self._result


class HostLaunch:
    """The calling thread does it at once: the synchronous loop on the CPU."""

    def submit(self, operation: Callable[[], T], /) -> Done[T]:
        return Done(operation())

    def recover(self) -> None:
        """Nothing is left over."""


class CudaTicket(Generic[T]):
    """An event behind the operation, on the current stream."""

    def __init__(self, result: T) -> None:
        self._result, self._done = result, torch.cuda.Event()
        self._done.record()

    def wait(self) -> T:
        self._done.synchronize()
        return self._result


class CudaLaunch:
    """Launched at once, done by the device in the order of its stream."""

    def submit(self, operation: Callable[[], T], /) -> CudaTicket[T]:
        return CudaTicket(operation())

    def recover(self) -> None:
        """What was launched before a failure is done by now, or the device is lost."""


class FutureTicket(Generic[T]):
    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        return self._future.result()


class WorkerLaunch:
    """A worker thread stands in for the device.

    Behind a failure nothing is done until somebody recovers: what is handed over fails for the same reason.
    """

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="launch")
        self._failure: BaseException | None = None

    def submit(self, operation: Callable[[], T], /) -> FutureTicket[T]:
        return FutureTicket(self._worker.submit(self._carry_out, operation))

    def _carry_out(self, operation: Callable[[], T]) -> T:
        if self._failure is not None:
            raise self._failure
        try:
            with torch.inference_mode():  # each thread has its own
                return operation()
        except BaseException as error:
            self._failure = error
            raise

    def recover(self) -> None:
        self._failure = None


def launch_side(device: torch.device, overlapped: bool) -> LaunchSide:
    """The one for a device and a loop."""
    if device.type == "cuda":
        return CudaLaunch()
    return WorkerLaunch() if overlapped else HostLaunch()
