"""Kinds of requests in the YAML workload spec: the keys of each, and what becomes of them."""

from __future__ import annotations

from pathlib import Path

from blis_py.workload._spec_diffusion import DiffusionSpec, diffusion_of
from blis_py.workload.client import KindOfClient

KindSpec = DiffusionSpec
"""Keys of a client, or of all clients, that say how the model answers. A further kind adds its own here."""


def kind_of_client(
    client: KindSpec, common: KindSpec, key: str, file: str | Path | None
) -> KindOfClient | None:
    """The kind of a client, over that of the spec for all; `None` = autoregressive.

    Raises:
        InputError: keys of a kind that the client is not of, or what cannot be.
    """
    return diffusion_of(client, common, key, file)
