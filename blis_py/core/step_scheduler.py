"""Interface of a scheduler whose requests emit a token in every step, as an instance uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blis_py.core.config import SchedulerConfig
from blis_py.core.counters import Counters
from blis_py.core.kv_source import KVSource
from blis_py.core.lifecycle import Lifecycle
from blis_py.core.request import Request
from blis_py.core.step import Step


class StepScheduler(Lifecycle):
    """Plans steps, and is notified when they are launched and when their outcome is known.

    Implemented by `scheduler.Scheduler`, and by `ranks.RankedScheduler` for several that step together.
    """

    def __init__(
        self, config: SchedulerConfig, counters: Counters, max_tokens: int, source: KVSource | None
    ) -> None:
        super().__init__(config, counters, max_tokens, source=source)
        self.tick = 0
        """Steps launched; the index of the step being planned."""
        self.resolved = 0
        """Steps whose outcome is known."""

    def schedule(self, now_ns: int) -> Step | None:
        """Plan the next step; None if there is nothing to compute at present.

        Allocates the blocks the step needs and, if there are too few, preempts.

        Raises:
            RuntimeError: no request can make progress, which is a bug.
        """
        raise NotImplementedError

    def finish(self, step: Step, steps: int = 1, stopped: Iterable[Request] = ()) -> list[Request]:
        """Apply the outcome of a step, or of `steps` identical ones; returns the requests that finished.

        A request whose computed tokens have reached its length emits one token. `steps` may not
        exceed `identical_decode_steps(step)`.

        Args:
            stopped: requests whose token was an end of sequence or completed a stop string, as determined by
                a real model.
        """
        self.advance(step, steps)
        return self.resolve(step, steps, stopped)

    def advance(self, step: Step, steps: int = 1) -> None:
        """Book what is known when the step, or `steps` identical ones, are launched.

        Tokens count as computed, requests with a complete prompt decode next, and those that have reached
        their length get no more steps. Slots and blocks are kept until the outcome is known.
        """
        raise NotImplementedError

    def resolve(self, step: Step, steps: int = 1, stopped: Iterable[Request] = ()) -> list[Request]:
        """Apply the outcome of a step, or of `steps` more of those launched with it; returns the finished
        requests.

        The requests may have changed state since: preempted, stalled, or running again.

        Args:
            stopped: as for `finish`.
        """
        raise NotImplementedError

    def ends_with(self, request: Request, step: Step, steps: int) -> bool:
        """Whether a request has its last token when a planned step, or `steps` identical ones, are over."""
        raise NotImplementedError

    def identical_decode_steps(self, step: Step) -> int:
        """Number of consecutive identical decode steps, this one included, absent arrivals and timeouts.

        For that many steps the same requests decode one token each, none finishes before the last of them,
        every block allocation succeeds, and waiting requests keep waiting: the number of free blocks only
        decreases, so a head of the queue that does not fit now will not fit then.
        """
        raise NotImplementedError

    def blocks_in_use(self, steps: int = 1) -> int:
        """Blocks in use during the last of `steps` steps like the one just planned."""
        raise NotImplementedError

    def take_blocks(self, steps: int) -> None:
        """Reserve the blocks of the first `steps` of the planned identical steps, ahead of `advance`."""
        raise NotImplementedError

    def plan_alike(self) -> None:
        """Plan the next of identical steps, of which fewer than planned have been launched."""
        raise NotImplementedError

    def leave_out_last(self) -> None:
        """Count the blocks of the latest launched step, which will not have ended, for no time."""
        self.kv.pool.tick -= 1

    def settle(self, request: Request) -> None:
        """Bring `computed`, `generated` and the block table of a decoding request up to date.

        During a step they have their values from the beginning of the step.
        """
        raise NotImplementedError

    @property
    def decoding(self) -> Iterator[Request]:
        """The requests that decode in the current step, in running order."""
        raise NotImplementedError

    @property
    def decode_tokens(self) -> int:
        """Tokens computed by decoding requests so far, refused drafts included."""
        raise NotImplementedError
