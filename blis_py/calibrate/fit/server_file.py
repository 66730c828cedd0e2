"""The engine file of a fitted server: a preset with the fitted numbers and where they come from."""

from __future__ import annotations

from typing import Any

from blis_py.calibrate.fit.server import ServerFit
from blis_py.config.derived import settings_of
from blis_py.config.engine import load_engine
from blis_py.config.layers import flatten
from blis_py.config.loader import as_dict
from blis_py.config.models import RunConfig
from blis_py.files.yaml_files import dump_yaml

_SERVER = ("gpu", "tp", "attention_dp", "ep", "redundant_experts")
"""Settings of an instance that are written, given or not."""
_KEPT = ("scheduler.", "latency.", "memory", "kv_cache_dtype", "link_gbps", "attention_dp_timeout_iters")
"""Beginnings of the settings that are of a server, if they were given."""


def engine_file(fit: ServerFit, config: RunConfig) -> str:
    """An engine preset with the fitted numbers.

    Args:
        config: the server with which the runs were simulated.
    """
    engine = load_engine(config.engine)
    flat = flatten(as_dict(config), RunConfig)
    fitted = _fitted(fit)
    of_engine = {key: flat[key] for key in engine.on(settings_of(config)) if key in flat}
    of_server = {key: flat[key] for key in flat if key in _SERVER or key in _given(config)}
    entries = {
        **{key: _entry(value, engine.sources[key]) for key, value in of_engine.items()},
        **{key: _entry(value, "of the server that was fitted") for key, value in of_server.items()},
        **{key: _entry(*both) for key, both in fitted.items()},
    }
    body = dump_yaml({"title": f"{engine.title}, fitted to a server", "settings": entries})
    return "\n".join(_head(fit, engine.title)) + "\n" + body


def _entry(value: Any, source: str) -> dict[str, Any]:
    return {"value": value, "source": source}


def _given(config: RunConfig) -> set[str]:
    """Settings of the server that a user set."""
    return {key for key in config.given or () if key.startswith(_KEPT)}


def _fitted(fit: ServerFit) -> dict[str, tuple[Any, str]]:
    """Value and source of the fitted settings."""

    def source_of(*names: str) -> str:
        stated = "; ".join(f"{name} {fit.numbers[name].described()}" for name in names)
        return f"fitted to {fit.requests:,} requests of {fit.source}; 90 % intervals: {stated}"

    gaps = [fit.numbers[name].value for name in ("gap_us", "gap_seq_us")]
    front = ("frontend_ms", "frontend_seq_ms", "frontend_token_ms")
    return {
        "frontend_ms": (list(fit.frontend_ms), source_of(*front)),
        "latency.step_scale": (fit.numbers["step_scale"].value, source_of("step_scale")),
        "latency.step_gap_us": (
            gaps + ([fit.in_flight] if gaps[1] else []),
            source_of("gap_us", "gap_seq_us"),
        ),
    }


def _head(fit: ServerFit, title: str) -> list[str]:
    """Comments with the errors before and after."""
    return [
        f"# {title}, with front end, gaps and a factor on step times fitted to one server.",
        f"# {fit.source}: {fit.requests:,} requests. Predicted over measured:",
        *(
            f"#   {name:10} {fit.before[name]:+7.1%} before, {fit.after[name]:+7.1%} after"
            for name in fit.before
        ),
        *(
            f"#   {name} of slices of time that were held out: {fit.held_out_before[name]:.1%} off before, "
            f"{error:.1%} after"
            for name, error in fit.held_out.items()
        ),
    ]
