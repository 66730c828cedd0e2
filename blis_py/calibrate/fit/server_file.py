"""The engine file of a fitted server: a preset with the fitted numbers and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blis_py.calibrate.fit.server import ServerFit
from blis_py.calibrate.fit.server_runs import NAMES
from blis_py.files.yaml_files import dump_yaml


def engine_file(
    fit: ServerFit,
    settings: Mapping[str, Any],
    sources: Mapping[str, str],
    title: str,
    given: Mapping[str, Any] | None = None,
) -> str:
    """An engine preset with the fitted numbers.

    Args:
        settings, sources: of the simulated preset, on its GPU.
        given: settings of the server with which the runs were simulated, by configuration key.
    """

    def source_of(*names: str) -> str:
        stated = "; ".join(f"{name} {fit.numbers[name].described()}" for name in names)
        return f"fitted to {fit.requests:,} requests of {fit.source}; 90 % intervals: {stated}"

    number = {name: float(f"{fit.numbers[name].value:.4g}") for name in NAMES}
    behind = tuple(settings.get("frontend_ms", ()))[1:] or (0.0,)
    gaps = [number["gap_us"], number["gap_seq_us"]] + ([fit.in_flight] if number["gap_seq_us"] else [])
    settings = {**settings, **(given or {})}
    sources = {**sources, **dict.fromkeys(given or {}, "given when the server was fitted")}
    fitted = {
        "frontend_ms": ([number["frontend_ms"], *behind], source_of("frontend_ms")),
        "latency.step_scale": (number["step_scale"], source_of("step_scale")),
        "latency.step_gap_us": (gaps, source_of("gap_us", "gap_seq_us")),
    }
    kept = {key: (value, sources[key]) for key, value in settings.items() if key not in fitted}
    entries = {key: {"value": value, "source": source} for key, (value, source) in {**kept, **fitted}.items()}
    head = [
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
    body = dump_yaml({"title": f"{title}, fitted to a server", "settings": entries})
    return "\n".join(head) + "\n" + body
