"""Comparison of runs of the same requests: what differs, by how much, and which requests gain or lose.

`pairs.py` matches requests and rejects runs of other requests, `bootstrap.py` computes the confidence of a
difference, `groups.py` breaks it down by class, tenant and length, and `compare.py` combines them.
"""
