"""What all random pieces have in common: settings from tables, without what is refused, and digests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

from shown import text_of

from blis_py.errors import InputError

HERE = Path(__file__).parent
Values = dict[str, tuple[Any, ...]]
KEPT = ("model", "gpu", "tp", "attention_dp", "block_size", "workload", "prefill_instances")
"""Not left out if they are refused: others are."""


def drawn(table: Values, share: float, rng: Random) -> dict[str, Any]:
    """Some of a table; a key with a plus is a name for settings that go together."""
    found: dict[str, Any] = {}
    for key, values in table.items():
        if rng.random() < share:
            value = rng.choice(values)
            found |= value if key.startswith("+") else {key: value}
    return found


def kept(
    settings: dict[str, Any], rng: Random, run: Callable[[dict[str, Any], Random], Iterator[Any]]
) -> list[Any]:
    """Without what is refused, and why it is."""
    found: list[Any] = []
    while True:
        try:
            return [*found, *run(settings, rng)]
        except InputError as error:
            found.append(f"refused: {error}")
            last = str(error.key).removeprefix("--").replace("-", "_").rpartition(".")[2]
            named = [key for key in settings if key.endswith(last) and key not in KEPT]
            free = named or [key for key in settings if key not in KEPT]
            if not free:
                return found
            settings.pop(free[-1])


def nameless(value: Any) -> str:
    """Digest of all values, whatever their fields and classes are called."""
    return sha256(re.sub(r"\w+[=(]", "", text_of(value)).replace(str(HERE), "").encode()).hexdigest()[:6]


def digest(value: Any) -> str:
    """Of all that it holds, wherever the inputs are."""
    return sha256(text_of(value).replace(str(HERE), "").encode()).hexdigest()[:6]
