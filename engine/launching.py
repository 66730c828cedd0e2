"""The launching side (CPU-L): carries out operations of the scheduling side (CPU-S) in order.

An operation copies inputs to the device, or runs a forward and samples. Submitting one returns a ticket
without waiting. On CUDA the operation is launched at once and the device works asynchronously; on the CPU a
worker thread does. Operations run in the order of submission: there is one stream.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

import torch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Ticket(Protocol[T_co]):
    """Handle of a submitted operation."""

    def wait(self) -> T_co:
        """Wait for the device; return the operation's result, or raise its exception."""
        ...


class LaunchSide(Protocol):
    """Executor of operations in the order of submission."""

    def submit(self, operation: Callable[[], T], /) -> Ticket[T]: ...

    def recover(self) -> None:
        """Resume execution after a failure has been handled."""
        ...


class Done(Generic[T]):
    """Ticket of an operation that completed on submission."""

    def __init__(self, result: T) -> None:
        self._result = result

    def wait(self) -> T:
        return self._result


class HostLaunch:
    """Synchronous execution in the calling thread: the synchronous loop on the CPU."""

    def submit(self, operation: Callable[[], T], /) -> Done[T]:
        return Done(operation())

    def recover(self) -> None:
        """No operation."""


class CudaTicket(Generic[T]):
    """Ticket with an event behind the operation, on the current stream."""

    def __init__(self, result: T) -> None:
        self._result, self._done = result, torch.cuda.Event()
        self._done.record()

    def wait(self) -> T:
        self._done.synchronize()
        return self._result


class CudaLaunch:
    """Immediate launch; execution by the device in stream order."""

    def submit(self, operation: Callable[[], T], /) -> CudaTicket[T]:
        return CudaTicket(operation())

    def recover(self) -> None:
        """Wait for everything launched before the failure.

        Raises:
            RuntimeError: it has failed, or the device is lost.
        """
        torch.cuda.synchronize()


class FutureTicket(Generic[T]):
    def __init__(self, future: Future[T]) -> None:
        self._future = future

    def wait(self) -> T:
        return self._future.result()


class WorkerLaunch:
    """A worker thread in place of a device.

    After a failure nothing runs until `recover`: submitted operations fail for the same reason.
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
            with torch.inference_mode():  # the mode is thread-local
                return operation()
        except BaseException as error:
            self._failure = error
            raise

    def recover(self) -> None:
        self._failure = None


def launch_side(device: torch.device, overlapped: bool) -> LaunchSide:
    """The launch side for a device and a loop."""
    if device.type == "cuda":
        return CudaLaunch()
    return WorkerLaunch() if overlapped else HostLaunch()
