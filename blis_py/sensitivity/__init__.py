"""Reruns of one simulation: how far figures move with other random numbers, coefficients or latency models.

`reruns.py` draws again for confidence intervals, `cross_check.py` simulates everything under every applicable
latency model, and `disagreement.py` the busiest minutes under the other models, for the note below a table.
"""
