"""The C ABI of the CUDA C++ kernels: argument types of every function, and their calls.

Each launch function returns a CUDA error code, 0 for success; pointers and the stream pass as integers.
"""

from __future__ import annotations

import ctypes
import functools
import time
import warnings

import torch

from engine.kernels import compilations
from engine.kernels.compilations import Compilations
from engine.kernels.cuda import build

_pointer, _int, _long, _float = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

# name: argument types, without the stream that comes last in every launch.
LAUNCHES: dict[str, tuple[type, ...]] = {
    # k_cache, v_cache, sources, targets, count, page_bytes
    "blis_copy_pages": (_pointer, _pointer, _pointer, _pointer, _long, _long),
    # logits, bfloat16, tokens, experts, top_k, renormalize, weights, ids
    "blis_route_softmax": (_pointer, _int, _int, _int, _int, _int, _pointer, _pointer),
    # logits, bfloat16, bias, tokens, experts, top_k, groups, keep_groups, renormalize, scale, weights, ids
    "blis_route_grouped_sigmoid": (
        *(_pointer, _int, _pointer, _int, _int, _int, _int, _int, _int, _float),
        *(_pointer, _pointer),
    ),
    # ids, num_rows, experts, block_m, capacity, rows, tile_experts, padded
    "blis_align_experts": (_pointer, _int, _int, _int, _int, _pointer, _pointer, _pointer),
    # logits, bitmask, rows, vocabulary, temperatures, top_k, top_p, min_p, seeds, positions, scratch, tokens
    "blis_sample": (_pointer, _pointer, _int, _int, *(_pointer,) * 8),
    # ids, answer, logits, rows, tokens, confidence, ticket, edit_rounds, done, num_rows, num_blocks,
    # positions, vocabulary, stride, mask_id, threshold, at_least, edits, edit_threshold, max_edit_rounds,
    # penalty
    "blis_denoise": (
        *(_pointer,) * 9,
        *(_int, _int, _int, _int, _long, _int, _float, _int, _int, _float, _int, _float),
    ),
}
# name: argument types of the functions that launch nothing; they return an int.
QUERIES: dict[str, tuple[type, ...]] = {"blis_sample_scratch_bytes": ()}


class LaunchError(RuntimeError):
    """A kernel launch was refused by the CUDA runtime."""


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give every function of a loaded library its types; raises AttributeError where one is missing."""
    for name, arguments in LAUNCHES.items():
        getattr(library, name).argtypes = (*arguments, _pointer)
    for name, arguments in QUERIES.items():
        getattr(library, name).argtypes = arguments
    return library


@functools.cache
def load() -> ctypes.CDLL:
    """The loaded kernels, built if necessary; raises BuildError or OSError if that is impossible."""
    began_s = time.perf_counter()
    is_cached = build.library().exists()
    if not is_cached:
        build.build_library()
    try:
        library = ctypes.CDLL(str(build.library()))
    except OSError as error:
        if not is_cached:
            raise
        library, is_cached = _built_here(error), False
    compilations.note(Compilations(int(not is_cached), int(is_cached), time.perf_counter() - began_s))
    return declare(library)


def _built_here(error: OSError) -> ctypes.CDLL:
    """A fresh build in place of a library that this system cannot load because it was built for another."""
    try:
        build.build_library()
    except build.BuildError as reason:
        raise build.BuildError(f"{build.library()} does not load here ({error}); {reason}") from error
    return ctypes.CDLL(str(build.library()))


@functools.cache
def available() -> bool:
    """Whether the CUDA C++ kernels can run here; if not, warn once with the reason."""
    try:
        if torch.cuda.get_device_capability() < (9, 0):
            raise build.BuildError("they need a GPU of compute capability 9.0 or later")
        load()
    except (build.BuildError, OSError, RuntimeError, AttributeError) as error:
        warnings.warn(
            f"running without the CUDA C++ kernels, on slower torch code: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


def pointer(tensor: torch.Tensor, dtype: torch.dtype) -> int:
    """Address of a contiguous tensor of any shape.

    Raises:
        TypeError: it is not contiguous, or not of the kernel's element type.
    """
    if tensor.dtype != dtype or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "strided"
        raise TypeError(f"the kernel takes a contiguous {dtype} tensor, not a {layout} {tensor.dtype} one")
    return tensor.data_ptr()


def launch(name: str, device: torch.device, *arguments: int | float | None) -> None:
    """Call a launch function on the device's current stream; raises LaunchError if it was refused.

    On torch's meta device there is nothing to launch on.
    """
    if device.type == "meta":
        return
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    code = getattr(load(), name)(*arguments, stream)
    if code:
        raise LaunchError(f"{name} was not launched: CUDA error {code}")
