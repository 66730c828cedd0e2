"""Manifests of a planned configuration: Kubernetes, llm-d, Dynamo, compose.

A form is a module with a function `files`, and one line in `EMITTED`.
"""

from __future__ import annotations

from collections.abc import Callable

from blis_py.planning.emit import compose, dynamo, kubernetes, llmd
from blis_py.planning.result import Candidate

EMITTED: dict[str, Callable[[Candidate], dict[str, str]]] = {
    "k8s": kubernetes.files,
    "llm-d": llmd.files,
    "dynamo": dynamo.files,
    "compose": compose.files,
}
"""Name of a form -> texts of its files by name; the first has the servers, which `--launch` reads back."""
