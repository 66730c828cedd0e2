"""Settings that follow from what a profile was measured on."""

from __future__ import annotations

from blis_py.latency.fitted_profile import read_meta


def implied_settings(profile: str) -> dict[str, int]:
    """Settings that are those of the measured engine where nobody gives them, by configuration key."""
    meta = read_meta(profile)[1]
    keys = {"tp": "tp", "block_size": "scheduler.block_size"}
    return {key: int(meta[name]) for name, key in keys.items() if meta.get(name)}
