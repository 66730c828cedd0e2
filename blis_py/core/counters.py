"""Counters over the life of an instance."""

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
    """Tokens of forward passes launched for requests whose end was not known yet."""
