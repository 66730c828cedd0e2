"""Output of one request, and the thread that delivers it beside the engine's.

The engine's thread submits token ids without waiting. The output thread decodes them and delivers the text in
the order of submission.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event, Thread, current_thread

from engine.output_text import OutputText

_STILL_THERE_S = 1.0
"""Interval of liveness checks while waiting for the output thread, in s."""


@dataclass(frozen=True, slots=True)
class OutputDelta:
    """Output of a step for one request."""

    request_id: str
    token_ids: list[int]
    """New tokens, including the stop token."""
    text: str
    """New text that is final: whole characters, and no possible beginning of a stop string."""
    finish_reason: str | None = None
    """Finish reason in the last delta, which has no tokens: as in `RequestOutput`."""
    stop_reason: int | str | None = None
    error: str | None = None


OnDelta = Callable[[OutputDelta], None]
Work = Callable[[], None]


class OutputThread:
    """Thread that executes submitted work in order, started on first use."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._failures: list[BaseException] = []
        self._thread: Thread | None = None
        self._closed = False
        weakref.finalize(self, self._queue.put, None)  # no more work can come

    def put(self, work: Work) -> None:
        """Submit work.

        Raises:
            RuntimeError: the thread has failed, or was shut down.
        """
        if self._thread is None or self._failures or self._closed:
            self.check()
            self._begin()
        self._queue.put(work)

    def settle(self) -> None:
        """Wait for all submitted work; in the thread itself earlier work is already done.

        Raises:
            RuntimeError: the thread has failed.
        """
        thread = self._thread
        if thread is None or thread is current_thread():
            return
        done = Event()
        self._queue.put(done.set)
        while not done.wait(_STILL_THERE_S) and thread.is_alive():
            pass
        if self._failures:
            self.check()

    def shutdown(self) -> None:
        """Finish submitted work, then stop."""
        self._closed = True
        self._queue.put(None)
        if self._thread is not None and self._thread is not current_thread():
            self._thread.join()

    def check(self) -> None:
        """Verify that the thread accepts work.

        Raises:
            RuntimeError: the thread has failed, or was shut down.
        """
        if self._failures:
            problem = f"the output thread broke down: {error_line(self._failures[0])}"
            raise RuntimeError(problem) from self._failures[0]
        if self._closed:
            raise RuntimeError("the engine has been shut down")

    def _begin(self) -> None:
        arguments = (self._queue, self._failures)  # not `self`, which may be collected while the thread waits
        self._thread = Thread(target=_carry_out, args=arguments, name="output", daemon=True)
        self._thread.start()


def _carry_out(queue: SimpleQueue[Work | None], failures: list[BaseException]) -> None:
    while (work := queue.get()) is not None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
        del work  # else it would be kept until the next item


class OutputStream:
    """The output of one request, processed only by the output thread.

    Args:
        decoder: of its tokens; None if texts are submitted, or not requested.
        held_back: number of final characters that may begin a stop string and are not yet delivered.
        on_delta: callback for every step; None = no listener.
        settle: waits for all work submitted to the output thread.
        on_error: called once if decoding or the listener has failed.
    """

    __slots__ = (
        "_decoder",
        "_delivered",
        "_held_back",
        "_on_delta",
        "_on_error",
        "_settle",
        "error",
        "over",
        "text",
    )

    def __init__(
        self,
        decoder: OutputText | None,
        held_back: int,
        on_delta: OnDelta | None,
        settle: Work,
        on_error: Callable[[OutputStream], None],
    ) -> None:
        self.text = ""
        """The whole output so far."""
        self.error: str | None = None
        """The error that ended delivery."""
        self.over = False
        self._decoder, self._held_back = decoder, held_back
        self._on_delta, self._settle, self._on_error = on_delta, settle, on_error
        self._delivered = 0
        """Characters that have been delivered."""

    def whole(self) -> str:
        """The text of all submitted tokens, for any thread.

        Raises:
            RuntimeError: the output thread has failed.
        """
        if not self.over:
            self._settle()
        return self.text

    def add(self, request_id: str, ids: list[int], is_text: bool, text: str | None) -> None:
        """Add tokens.

        Args:
            is_text: whether all of them are text; else the last one only marks the end of the output.
            text: their text, if decoded elsewhere.
        """
        if self.error is not None:
            return
        try:
            if self._decoder is not None:
                self._decoder.append(ids if is_text else ids[:-1])
                self.text = self._decoder.text
            elif text is not None:
                self.text = text
            if self._on_delta is not None:
                new = self._new(max(len(self.text) - self._held_back, 0))
                self._on_delta(OutputDelta(request_id, ids, new))
        except BaseException as error:
            self._fail(error)

    def end(
        self,
        request_id: str,
        finish_reason: str,
        stop_reason: int | str | None,
        error: str | None,
        text: str | None,
    ) -> None:
        """End the output."""
        try:
            if self._decoder is not None and self.error is None:
                self._decoder.flush()
                self.text = self._decoder.text
            elif text is not None:
                self.text = text
        except BaseException as broken:
            self._fail(broken)
        if self.error is not None:
            finish_reason, stop_reason, error = "error", None, self.error
        try:
            if self._on_delta is not None:
                new = self._new(len(self.text))
                self._on_delta(OutputDelta(request_id, [], new, finish_reason, stop_reason, error))
        except BaseException as broken:
            self._fail(broken)
        self.over = True

    def _new(self, end: int) -> str:
        new = self.text[self._delivered : end]
        self._delivered = max(end, self._delivered)
        return new

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error_line(error)
            self._on_error(self)


def error_line(error: BaseException) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}"
