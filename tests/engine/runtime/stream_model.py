"""A device that falls behind the host as chance has it, on one thread: every run repeats exactly.

Operations are carried out in the order in which they were handed over, each at any moment between that and
when it, or one behind it, is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import wraps
from random import Random
from typing import Any

import torch

from engine.engine import LLMEngine


class ModelTicket:
    def __init__(self, stream: ModelStream, operation: Callable[[], Any], after: list[ModelTicket]) -> None:
        self.stream, self.operation, self.after = stream, operation, after
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def carry_out(self) -> None:
        for other in self.after:
            other.finish()
        self.done = True
        if self.stream.failure is not None:
            self.error = self.stream.failure
            return
        try:
            with torch.inference_mode():
                self.result = self.operation()
        except BaseException as error:
            self.error = self.stream.failure = error

    def finish(self) -> None:
        while not self.done:
            self.stream.queue.popleft().carry_out()

    def wait(self) -> Any:
        self.finish()
        if self.error is not None:
            raise self.error
        return self.result


class ModelStream:
    """A `LaunchSide`.

    Args:
        pace: how probable it is, whenever the host does something, that the device does the next operation.
    """

    def __init__(self, rng: Random, pace: float) -> None:
        self.queue: deque[ModelTicket] = deque()
        self.failure: BaseException | None = None
        self.most_behind = 0
        self._rng, self._pace = rng, pace

    def submit(self, operation: Callable[[], Any], /) -> ModelTicket:
        return self.submit_behind(operation, [])

    def submit_behind(self, operation: Callable[[], Any], after: list[ModelTicket]) -> ModelTicket:
        ticket = ModelTicket(self, operation, after)
        self.queue.append(ticket)
        self.most_behind = max(self.most_behind, len(self.queue))
        self.meanwhile()
        return ticket

    def meanwhile(self) -> None:
        """The host does something; who knows what the device has done by then."""
        while self.queue and self._rng.random() < self._pace:
            self.queue.popleft().carry_out()

    def recover(self) -> None:
        assert not self.queue, "something is still in flight"
        self.failure = None


def on_model_stream(engine: LLMEngine, rng: Random, pace: float | None = None) -> ModelStream:
    """Lets the engine work with such a device, which may do something whenever the host writes."""
    stream = ModelStream(rng, rng.choice([0.0, 0.2, 0.5, 0.9]) if pace is None else pace)
    engine.executor.side = stream
    builder = engine.executor.builder
    for owner, names in (
        (builder, ("begin", "decodes", "mixed", "pack", "new_page")),
        (builder.tables, ("write", "write_one")),
        (engine.sampler, ("plan",)),
        (engine, ("schedule",)),
    ):
        for name in names:
            setattr(owner, name, _with(stream, getattr(owner, name)))
    return stream


def _with(stream: ModelStream, inner: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        stream.meanwhile()
        result = inner(*args, **kwargs)
        stream.meanwhile()
        return result

    return call
