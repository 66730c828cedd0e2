"""Accelerators: datasheets, the layout of a model on several of them, and the KV blocks that fit.

Start with `gpu.py`, the datasheets; `layout.py` divides a model by tensor and expert parallelism, and
`capacity.py` counts its bytes, with what `memory_overheads.py` leaves beside weights and cache.
"""
