"""Folders of measured kernels, in any supported layout."""

from __future__ import annotations

from pathlib import Path

from blis_py.hardware.gpu import GpuSpec
from blis_py.latency.kernel_profile import KernelProfile
from blis_py.latency.layer_profile import read_layer_profile
from blis_py.latency.operator_tables import is_operator_folder, read_operator_tables
from blis_py.models.model_shape import ModelShape


def load_kernel_profile(folder: str | Path, shape: ModelShape, gpu: GpuSpec, tp: int) -> KernelProfile:
    """Read a folder in one of two layouts: kernels measured in the model's own layers (`layer_profile`), or
    tables of operators over their shapes (`operator_tables`).

    Raises:
        InputError: the folder is neither, is damaged, or does not cover the model.
    """
    if is_operator_folder(Path(folder)):
        return read_operator_tables(Path(folder), shape, gpu, tp)
    return read_layer_profile(Path(folder), shape, gpu, tp)
