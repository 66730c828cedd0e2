"""Files and folders as this program writes them: as a whole, or not at all.

`staging.py` puts what is written in its place when all of it is written, by the means of `unfinished.py`
(where it stands until then) and `exchange.py` (how it takes its place). `complete.py` says of the folder of a
result whether it is whole, and what in it is ours; `places.py`, before any work, whether it can be written.
"""
