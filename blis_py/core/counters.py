"""What an instance counts over its life."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals over the life of a scheduler."""

    prefill_tokens: int = 0
    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0
    priority_inversions: int = 0
    head_of_line_events: int = 0
    discarded_tokens: int = 0
    """Of forwards launched for requests that had ended, which was not known yet."""
