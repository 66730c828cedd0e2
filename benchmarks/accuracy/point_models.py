"""Checkpoints of the rows of public benchmarks, by the names under which they are published."""

from __future__ import annotations

from functools import cache

from blis_py.models.model_shape import load_model
from blis_py.models.published_formats import is_known

_FP8 = {"fp8_block": "RedHatAI/{}-FP8-block"}
"""Names of checkpoints in 8 bits whose scales are of a kind; else NVIDIA's, one for a matrix."""


def checkpoint_of(model: str, served: str, precision: str, gemm_form: str) -> str:
    """The checkpoint that a row was measured with.

    A row names the model, or the checkpoint that its server had; a model in 16 bits whose row has another
    precision is in the format of NVIDIA's checkpoints.

    Args:
        served: the checkpoint by the launch flags; may be empty.
        gemm_form: form of FP8 by which the row was multiplied.

    Raises:
        InputError: a name that no configuration is known of.
    """
    name = served if is_known(served) else model
    short = name.rpartition("/")[2]
    narrowest = _narrowest_bytes(name)
    if precision == "fp8" and narrowest >= 2:
        return _FP8.get(gemm_form, "nvidia/{}-FP8").format(short)
    if precision == "fp4" and narrowest >= 1:
        return f"nvidia/{short}-NVFP4"
    return name


@cache
def _narrowest_bytes(name: str) -> float:
    """Bytes of the narrowest weights of a checkpoint."""
    shape = load_model(name)
    weights = shape.weights
    return min(weights.experts if shape.moe_layers else weights.dense, weights.attention)
