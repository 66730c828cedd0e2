"""Kernels that an engine's rows of experts are of, by format, as AIConfigurator's tables name them. Rows of
other kernels stand apart under a name of their own (`operator_list`)."""

from __future__ import annotations

_HOPPER = {
    "vllm": {
        "bfloat16": "triton",
        "fp8": "triton",
        "fp8_block": "triton",
        "w4a16_mxfp4": "triton",
        "int4_wo": "marlin",
    },
    "sglang": {"bfloat16": "triton", "fp8_block": "triton", "w4a16_mxfp4": "triton", "int4_wo": "marlin"},
    "trtllm": {"bfloat16": "cutlass", "fp8": "cutlass", "fp8_block": "cutlass", "w4a16_mxfp4": "cutlass"},
}
"""vLLM's experts in FP8 by tensor are priced by the rows with block scales."""
_BY_TRTLLM = dict.fromkeys(
    ("bfloat16", "fp8", "fp8_block", "nvfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8"), "trtllm"
)
_BLACKWELL = {
    "vllm": {**_BY_TRTLLM, "int4_wo": "marlin"},
    "sglang": {**_BY_TRTLLM, "int4_wo": "trtllm"},
    "trtllm": {
        "bfloat16": "cutlass",
        "fp8": "cutlass",
        "fp8_block": "deepgemm",
        "w4a16_mxfp4": "trtllm",
        "w4a8_mxfp4_mxfp8": "trtllm",
    },
}


def kernel_of_rows(engine: str, form: str, multiplies_in_4_bits: bool) -> str:
    """The kernel of the rows of a format; empty if they are of another engine, or of several kernels.

    Args:
        multiplies_in_4_bits: the GPU is a Blackwell, or priced as one.
    """
    return (_BLACKWELL if multiplies_in_4_bits else _HOPPER).get(engine, {}).get(form, "")
