"""Atomic output of files and folders.

`staging.py` moves complete output into place, using `unfinished.py` (temporary folders) and `exchange.py`
(atomic replacement). `complete.py` checks whether a result folder is complete and which files belong to it;
`places.py` checks in advance whether output can be written; `stopping.py` ends the process on Ctrl-C or
SIGTERM without partial output.
"""
