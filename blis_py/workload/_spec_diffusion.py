"""`kind: diffusion` in the YAML workload spec."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blis_py.errors import InputError
from blis_py.workload.spec_base import Strict

if TYPE_CHECKING:
    from blis_py.workload.diffusion import DiffusionClient


class DiffusionSpec(Strict):
    """`kind: diffusion` and what belongs to it (`blis_py.workload.diffusion`), of a client or of all."""

    kind: Literal["autoregressive", "diffusion"] | None = None
    """Kind of the model; absent: autoregressive."""
    block_size: int | None = None
    """Positions of a block (`kind: diffusion`)."""
    steps: Any = None
    """Denoising rounds of a block: a number, or how they are distributed (`kind: diffusion`)."""
    commit_rounds: int | None = None
    """Rounds that follow a finished block, 0 or 1 (`kind: diffusion`)."""


def diffusion_of(
    client: DiffusionSpec, common: DiffusionSpec, key: str, file: str | Path | None
) -> DiffusionClient | None:
    """Properties of a client, over those of the spec for all.

    Raises:
        InputError: keys of block diffusion in a client whose answers are autoregressive.
    """
    names = DiffusionSpec.model_fields
    for_all, own = ({n: getattr(s, n) for n in names if getattr(s, n) is not None} for s in (common, client))
    stated = for_all | own
    if stated.get("kind") == "diffusion":
        from blis_py.workload.diffusion import diffusion_client

        return diffusion_client(stated, key=key if own else "", file=file)
    for name in own if for_all.get("kind") == "diffusion" else stated:
        if name != "kind":
            where, fix = f"{key}.{name}" if name in own else name, "give kind: diffusion too, or drop it"
            raise InputError("belongs to block diffusion", file=file, key=where, fix=fix)
    return None
