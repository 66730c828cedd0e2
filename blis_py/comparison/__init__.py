"""Runs of the same requests beside each other: what differs, by how much, and who got better or paid for it.

`pairs.py` matches requests and refuses runs that are not of the same ones, `bootstrap.py` says how sure a
difference is, `groups.py` looks at classes, tenants and lengths, and `compare.py` puts it together.
"""
