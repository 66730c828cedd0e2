"""Host side of transfers to the device: pinned buffers in rotation, and block tables."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.launching import Ticket

_MIN_CHANGES = 1024
"""Places of block tables for which there is room from the beginning."""


class PinnedRing:
    """Host buffers in rotation, pinned where a GPU reads them.

    The copy out of a buffer runs while the host goes on. So the next step is written into the other one, and
    before a buffer is written again its copy is waited for.
    """

    def __init__(self, buffers: int, nbytes: int, pinned: bool) -> None:
        self._pinned = pinned
        self.buffers = [self._new(nbytes) for _ in range(buffers)]
        self._readers: list[Ticket[Any] | None] = [None] * buffers
        self._at = 0

    def next(self, nbytes: int = 0) -> int:
        """Index of the buffer to be written now, of at least so many bytes."""
        self._at = (self._at + 1) % len(self.buffers)
        reader, self._readers[self._at] = self._readers[self._at], None
        if reader is not None:
            with suppress(Exception):  # the wait for the step raises it
                reader.wait()
        if self.buffers[self._at].nbytes < nbytes:
            self.buffers[self._at] = self._new(2 * nbytes)
        return self._at

    def read_by(self, reader: Ticket[Any]) -> None:
        """The copy out of the buffer written last."""
        self._readers[self._at] = reader

    def _new(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=self._pinned)


class BlockTables:
    """Pages of each running sequence, one row each, written when they change.

    The device has a copy of its own; changes reach it before the next forward and behind the one before,
    which still reads what was there. Without one, host and device share the table: only where no forward
    runs while the host writes.
    """

    def __init__(self, max_seqs: int, width: int, device: torch.device, shared: bool | None = None) -> None:
        self.host: NDArray[np.int32] = np.zeros((max_seqs + 1, width), dtype=np.int32)
        """The last row belongs to no sequence: padding."""
        self._width = width
        self._shared = device.type == "cpu" if shared is None else shared
        mirror = torch.from_numpy(self.host)
        self.device = mirror if self._shared else mirror.to(device, copy=True)
        self.used = 0
        """Blocks of the longest sequence there has been."""
        self._changed: dict[int, int] = {}
        """Page by place: whatever was written there before it was sent, a transfer has the latest alone."""
        self.ring = PinnedRing(2, 16 * _MIN_CHANGES, device.type == "cuda")

    def write(self, row: int, first: int, pages: list[int]) -> None:
        """Pages of a sequence, from its block `first` on."""
        self.host[row, first : first + len(pages)] = pages
        self.used = max(self.used, first + len(pages))
        if not self._shared:
            start = row * self._width + first
            self._changed.update(zip(range(start, start + len(pages)), pages, strict=True))

    def write_one(self, row: int, block: int, page: int) -> None:
        """The same for one page."""
        self.host[row, block] = page
        self.used = max(self.used, block + 1)
        if not self._shared:
            self._changed[row * self._width + block] = page

    def changes(self) -> torch.Tensor | None:
        """Places written since the last time, each once, and their pages; None if none were.

        Returns:
            `[2, n]` int64 in a pinned buffer.

        The copy out of it must be registered with `ring`.
        """
        count = len(self._changed)
        if not count:
            return None
        index = self.ring.next(16 * count)
        changes = self.ring.buffers[index][: 16 * count].view(torch.int64).view(2, count)
        changes.numpy()[:] = (list(self._changed), list(self._changed.values()))
        self._changed.clear()
        return changes

    def apply(self, changes: torch.Tensor) -> None:
        """On the launching side: apply `changes` `[2, n]` to the device's copy."""
        places, pages = changes.to(self.device.device, non_blocking=True)
        self.device.view(-1).index_copy_(0, places, pages.to(torch.int32))
