"""Input of `blis ui`: a spec, a trace, a saved result, a configuration, or an example."""

from __future__ import annotations

from pathlib import Path

from blis_py.api import configure
from blis_py.config.loader import load_config
from blis_py.config.models import RunConfig
from blis_py.errors import InputError
from blis_py.files.paths import is_file, is_folder
from blis_py.files.yaml_files import load_mapping

EXAMPLE = {
    "workload_spec": "mixed-slo",
    "model": "qwen3-14b",
    "gpu": "h100",
    "num_instances": 4,
    "scheduler": "priority-fcfs",
    "slo": ["critical.ttft.p99=500ms", "tpot.p90=50ms"],
}
"""An hour of mixed traffic, as `make run` has it."""
_MODEL = "llama-3.1-8b"
_SPEC_KEYS = ("clients", "cohorts", "aggregate_rate")


def opened(path: str | None, config: RunConfig | None) -> RunConfig:
    """The configuration that the page starts with.

    Args:
        path: a spec, a trace, or the folder of a result.
        config: settings from flags, if there are any.

    Raises:
        InputError: nothing that can be opened.
    """
    if path is None:
        return config if config is not None else configure(**EXAMPLE)
    if is_folder(path):
        if config is not None:
            raise InputError("a result has its own configuration", value=path, fix="drop the other flags")
        file = Path(path) / "config.yaml"
        if not is_file(file):
            raise InputError("holds no result", file=path, fix="name the folder that --out wrote")
        return load_config(file)
    if not is_file(path):
        raise InputError("no such file or folder", file=path, fix="name a spec, a trace or a result")
    return _with_traffic(path, config)


def _with_traffic(path: str, config: RunConfig | None) -> RunConfig:
    setting = {"trace": path}
    if Path(path).suffix in (".yaml", ".yml"):
        mapping = load_mapping(Path(path))
        if not any(key in mapping for key in _SPEC_KEYS):
            if config is not None:
                raise InputError("is a configuration itself", file=path, fix="name it by --config")
            return load_config(path)
        setting = {"workload_spec": path}
    if config is None:
        return configure(model=_MODEL, **setting)
    model = {} if config.model or config.latency.profile else {"model": _MODEL}
    return configure(config, **setting, **model)
