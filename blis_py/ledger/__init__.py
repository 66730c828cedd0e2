"""Ledgers of a request's time, exact to the nanosecond, and what-if runs that would have changed it.

`explain.py` combines the parts. `witness.py` records events of the requests in question while a run is
simulated again, `waiting.py` determines why a request waits, `division.py` divides the time of a step among
the requests in it, `book.py` builds ledgers from these, and `what_if.py` runs the same requests with other
settings.
"""
