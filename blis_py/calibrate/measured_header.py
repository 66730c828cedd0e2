"""The header of a measured trace: what its client knew of network and warm-up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.calibrate.token_times import TokenTimes
from blis_py.errors import InputError
from blis_py.files.paths import is_file, is_folder
from blis_py.files.yaml_files import load_mapping


def header_beside(measured: str | Path) -> tuple[Path | None, dict[str, Any]]:
    """The YAML file beside a trace, or in the folder of a run, and its content; None and nothing without."""
    path = Path(measured)
    folder, name = (path, "trace.csv") if is_folder(path) else (path.parent, path.name)
    beside = folder / (name.removesuffix(".gz").removesuffix(".csv") + ".yaml")
    return (beside, load_mapping(beside)) if name != beside.name and is_file(beside) else (None, {})


def number_in(section: dict[str, Any], key: str, kind: type, file: Path | None) -> Any:
    """A number in a header; 0 where it is missing.

    Raises:
        InputError: it is none.
    """
    value = section.get(key) or 0
    if isinstance(value, bool) or not isinstance(value, int | kind):
        raise InputError("must be a number", file=file, key=key, value=value)
    return value


def network_rtt_ms(header: dict[str, Any], file: Path | None) -> float:
    """Network time that the measured latencies contain."""
    network = header.get("network")
    rtt_ms: float = number_in(network if isinstance(network, dict) else {}, "measured_rtt_ms", float, file)
    return rtt_ms


def at_the_server(times: TokenTimes, measured: str | Path) -> tuple[TokenTimes, float]:
    """Times without the network's, and the first moment that counts, in s since the first sending.

    Raises:
        InputError: the network takes longer than a first token did.
    """
    file, header = header_beside(measured)
    rtt_s = network_rtt_ms(header, file) / 1e3
    warm_up = number_in(header, "warm_up_requests", int, file)
    if rtt_s and (times.ttft_s <= rtt_s).any():
        problem, key = "is longer than the shortest TTFT", "network.measured_rtt_ms"
        raise InputError(problem, file=file, key=key, value=rtt_s * 1e3, fix="correct the header")
    later_s = times.sent_s[times.request_id >= warm_up]
    since_s = float(later_s.min() - times.sent_s.min()) if warm_up and len(later_s) else 0.0
    since_s = since_s if np.isfinite(since_s) else 0.0
    return replace(times, ttft_s=times.ttft_s - rtt_s, e2e_s=times.e2e_s - rtt_s), since_s
