"""A simulated fleet behind the app: any cluster of `blis run`, in real time or faster.

Start with `live.py`, the simulation on the wall clock, and `backend.py`, which puts it behind the app.
"""
