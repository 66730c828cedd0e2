"""The YAML header of a TraceV2: strict keys, read and written."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blis_py.core.kinds import KINDS
from blis_py.errors import InputError
from blis_py.files.yaml_files import dump_yaml, load_mapping
from blis_py.outputs.staging import write_text

Keys = Mapping[str, Any]
"""Key -> the type of its value, a nested table of keys, or `dict` for anything nested."""

NUMBER = (int, float)
SERVER: Keys = {
    "type": str,
    "model": str,
    "tensor_parallel": int,
    "max_num_seqs": int,
    "block_size": int,
    "gpu_memory_utilization": NUMBER,
    "max_model_len": int,
}
HEADER: Keys = {
    "trace_version": int,
    "time_unit": str,
    "created_at": str,
    "mode": str,
    "warm_up_requests": int,
    "workload_seed": int,
    "workload_spec": str,
    "session_context_growth": str,
    "server": SERVER,
    "network": {"measured_rtt_ms": NUMBER},
    "goodput_slo_targets": dict,
    "kv_offload": dict,
    "observed_kv_metrics": dict,
}
NOT_YET = {
    "kv_offload": "KV offload of the recorded server is not simulated",
    "observed_kv_metrics": "hit rates of the recorded server are not compared with",
}
"""Keys that say what a replay would have to heed and does not."""
REQUIRED = ("trace_version", "time_unit", "mode", "warm_up_requests")
VERSIONS = (2, 3)
TIME_UNITS = ("microseconds", "us")
MODES = ("real", "generated", "replayed")
ACCUMULATE = "accumulate"
"""`session_context_growth` of a trace whose rows have only the additions of turns."""


def server_type(server: str, kind: str | None) -> str:
    """`server.type`: behind a hyphen the kind of requests, where they are not autoregressive."""
    return server if kind is None else f"{server}-{kind}"


def kind_of(header: Mapping[str, Any]) -> str | None:
    """The kind of requests that the header of a trace states; `None` = autoregressive."""
    stated = str((header.get("server") or {}).get("type"))
    return next((kind for kind in KINDS if stated.endswith(f"-{kind}")), None)


def read_header(path: Path) -> dict[str, Any]:
    """The header as written, checked.

    Raises:
        InputError: an unknown or missing key, a wrong type, or an unknown version, unit, mode or session
        context.
    """
    header = load_mapping(path)
    _check_keys(path, header, HEADER)
    for key in REQUIRED:
        if header.get(key) is None:
            raise InputError("missing key", file=path, key=key, fix=f"a header has {', '.join(REQUIRED)}")
    for key, allowed in (("trace_version", VERSIONS), ("time_unit", TIME_UNITS), ("mode", MODES)):
        if header[key] not in allowed:
            choices = " or ".join(map(str, allowed))
            raise InputError("not supported", file=path, key=key, value=header[key], fix=f"use {choices}")
    if header["warm_up_requests"] < 0:
        raise InputError(
            "must not be negative", file=path, key="warm_up_requests", value=header["warm_up_requests"]
        )
    for key, problem in NOT_YET.items():
        if header.get(key):
            raise InputError(problem, file=path, key=key, fix="remove the key to replay the trace without")
    growth = header.get("session_context_growth")
    if growth not in (None, "", ACCUMULATE):
        fix = f"use {ACCUMULATE}, or leave it out"
        raise InputError("not supported", file=path, key="session_context_growth", value=growth, fix=fix)
    return header


def _check_keys(path: Path, values: Mapping[str, Any], keys: Keys, inside: str = "") -> None:
    for key, value in values.items():
        where = f"{inside}{key}"
        if key not in keys:
            near = difflib.get_close_matches(str(key)[:100], keys, 1)
            fix = f"did you mean {near[0]}?" if near else "remove it"
            raise InputError("unknown key", file=path, key=where, fix=fix)
        kind = keys[key]
        nested = kind if isinstance(kind, Mapping) else None
        expected = dict if nested is not None else kind
        if value is None:
            continue
        # YAML reads an unquoted timestamp as a date; any scalar will do where text is expected
        if expected is str and not isinstance(value, (dict, list)):
            continue
        if isinstance(value, bool) or not isinstance(value, expected):
            expectation = {int: "a whole number", NUMBER: "a number", str: "text", dict: "a mapping"}[
                expected
            ]
            raise InputError(f"must be {expectation}", file=path, key=where, value=value)
        if nested is not None:
            _check_keys(path, value, nested, f"{where}.")


def write_header(
    path: Path,
    *,
    mode: str,
    seed: int | None,
    workload: str | None,
    server: Mapping[str, Any] | None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write a header; `workload` names the spec file or preset, `server` holds keys of `SERVER`, `more`
    further keys of the header."""
    header: dict[str, Any] = {
        "trace_version": 3,
        "time_unit": "microseconds",
        "mode": mode,
        "warm_up_requests": 0,
    }
    if seed is not None:
        header["workload_seed"] = seed
    if workload is not None:
        header["workload_spec"] = workload
    if server:
        header["server"] = dict(server)
    header |= more or {}
    write_text(path, dump_yaml(header))
