"""Simulated time: the event queue, the lookahead and wake-ups."""
