"""Where the time of a request went: a ledger that adds up to the nanosecond, and what would have changed it.

`explain.py` puts it together. `witness.py` notes what happens to the requests in question while a run is
simulated again, `waiting.py` says why one waits, `division.py` divides the time of a step among those who
compute in it, `book.py` makes ledgers of that, and `what_if.py` runs the same requests with other settings.
"""
