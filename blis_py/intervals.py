"""Former name of `blis_py.sensitivity.reruns`, still accepted."""

from blis_py.sensitivity.reruns import Reruns

__all__ = ["Reruns"]
