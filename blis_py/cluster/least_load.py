"""The instances with the smallest load, kept in order while loads change: nobody is walked to find them."""

from __future__ import annotations

from bisect import bisect_left, insort

from blis_py.cluster.signals import Signals


class LeastLoad:
    """Instances by effective load. Loads are small whole numbers, so each has a list of who has it."""

    def __init__(self, signals: Signals) -> None:
        signals.track_moves()
        self._signals = signals
        self._place = [0] * signals.count
        """The load under which each instance is listed."""
        self._with_load: dict[int, list[int]] = {0: list(range(signals.count))}
        """In order of their index, whatever happened in which order."""
        self._least = 0

    def ties(self) -> list[int]:
        """All instances with the smallest load, by index."""
        signals, place, with_load = self._signals, self._place, self._with_load
        moved = signals.moved
        if moved:
            signals.moved = []
            for index in moved:
                load, old = signals.load[index], place[index]
                if load != old:
                    place[index] = load
                    listed = with_load[old]
                    del listed[bisect_left(listed, index)]
                    if not listed:
                        del with_load[old]
                    if load in with_load:
                        insort(with_load[load], index)
                    else:
                        with_load[load] = [index]
                    if load < self._least:
                        self._least = load
        while self._least not in with_load:
            self._least += 1
        return with_load[self._least]
