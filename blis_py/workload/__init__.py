"""Workloads: from a spec, a preset or flags to a `RequestTable`.

Start with `table.py` (what everything produces), then `generate.py`, then `spec.py` (the YAML).
"""

from blis_py.requests.table import Content, Labels, RequestTable
from blis_py.workload.generate import generate

__all__ = ["Content", "Labels", "RequestTable", "generate"]
