"""GPUs as labels of nodes and types of machines name them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from blis_py.files.profiles import stem_of

_PRODUCT_LABELS = (
    *(
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-accelerator",
        "gpu.nvidia.com/class",
        "gpu.nvidia.com/model",
    ),
    *("amd.com/gpu.product-name", "k8s.amazonaws.com/accelerator", "karpenter.k8s.aws/instance-gpu-name"),
)
_MACHINE_LABELS = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
_MACHINES = {
    r"p5\.": "h100",
    r"p5en?\.": "h200",
    r"p4d\.": "a100-40",
    r"p4de\.": "a100-80",
    r"p6-b200": "b200",
    r"g6e\.": "l40s",
    r"g6\.": "l4",
    r"g5\.": "a10g",
    r"a3-(high|mega)gpu": "h100",
    r"a3-ultragpu": "h200",
    r"a4-highgpu": "b200",
    r"a2-highgpu": "a100-40",
    r"a2-ultragpu": "a100-80",
    r"standard_nd96.*h100": "h100",
    r"standard_nd96.*h200": "h200",
    r"bm\.gpu\.h100": "h100",
    r"bm\.gpu\.h200": "h200",
}
"""Beginnings of types of machines of public clouds."""


def gpu_of(text: str) -> str | None:
    """The bundled GPU of a product name such as `NVIDIA-H100-80GB-HBM3`; None if there is none."""
    plain = re.sub(r"-(SHARED|MIG.*)$", "", text.strip(), flags=re.IGNORECASE)
    for name in (plain, re.sub(r"^(nvidia|amd|tesla|instinct)[-_ ]", "", plain, flags=re.IGNORECASE)):
        found = stem_of("gpus", name.replace("-", " "))
        if found is not None:
            return found
    return None


def gpu_of_node(labels: Mapping[str, Any]) -> tuple[str, str]:
    """The bundled GPU of a node with these labels, and the label that says it; empty if none is named.

    The GPU is empty where the label names one that is not bundled.
    """
    for key, value in _single(labels):
        if key in _PRODUCT_LABELS:
            return gpu_of(value) or "", value
        if key in _MACHINE_LABELS:
            for pattern, gpu in _MACHINES.items():
                if re.match(pattern, value.lower()):
                    return gpu, value
    return "", ""


def _single(labels: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in labels.items():
        values = value if isinstance(value, list) else [value]
        if len(values) == 1:
            yield str(key), str(values[0])
