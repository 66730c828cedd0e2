"""Independent random streams by name, so that a new consumer never disturbs the others."""

from __future__ import annotations

from hashlib import sha256

import numpy as np


def stream(seed: int, *names: str) -> np.random.Generator:
    """The random stream of `seed` that belongs to `names`, whatever other streams exist.

    `stream(42, "client", "chat", "input")` gives the same numbers however many clients there are and in
    whatever order they are listed.
    """
    digest = sha256("\x1f".join(names).encode()).digest()
    words = [int.from_bytes(digest[at : at + 4], "little") for at in range(0, 16, 4)]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed & (2**64 - 1), *words])))
