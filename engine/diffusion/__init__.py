"""Block diffusion: algorithms that fill blocks, loops that run them, and the engine around both.

Start with `loops.py` (when a batch ends), then `low_confidence.py` (what happens in a round); neither
depends on the other. `blis_py.core.diffusion` decides which blocks run together.
"""
