"""YAML text as plain data."""

from __future__ import annotations

from typing import Any

import yaml

SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of libyaml where PyYAML has it: the same data in a tenth of the time."""


def safe_load(text: str) -> Any:
    """The data a text stands for.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, SafeLoader)
