"""Measured steps from any supported source: a profile's folder, samples, step logs, run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.opening import reading
from blis_py.files.paths import expanded, is_file, is_folder
from blis_py.files.profiles import find_profile
from blis_py.models.hf_config import ConfigFile
from blis_py.traces.samples import StepSamples, joined, read_samples, samples_of
from blis_py.traces.steplog import read_step_log

SAMPLES = "samples.csv.gz"
STEP_LOGS = ("steps.csv.gz", "steps.csv", "steps.parquet")


def read_steps(path: str | Path) -> StepSamples:
    """Samples from a folder (`samples.csv.gz`, or the step log of a run), a file of samples, or a step log.

    The steps of a log are named after its run: the folder it lies in, or the file.

    Raises:
        InputError: it contains none of these.
    """
    path = expanded(path)
    if is_folder(path):
        file = next((path / name for name in (SAMPLES, *STEP_LOGS) if is_file(path / name)), None)
        if file is None:
            fix = f"give a folder with {SAMPLES} or {STEP_LOGS[0]}"
            raise InputError("contains no measured steps", file=path, fix=fix)
        path = file
    if not is_file(path):
        raise InputError("no such file or folder", file=path, fix="check the path")
    if path.name.endswith((".csv", ".csv.gz")) and _is_samples(path):
        return read_samples(path)
    name = path.resolve().parent.name if path.name in STEP_LOGS else path.name.partition(".")[0]
    return samples_of(read_step_log(path), name)


def read_all(paths: Sequence[str | Path]) -> StepSamples:
    """The measured steps of all paths combined.

    Raises:
        InputError: nothing to read, or incompatible measurements.
    """
    if not paths:
        raise InputError("no measured steps given", fix="give a folder, samples.csv.gz, or step logs")
    parts = [read_steps(path) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        key = difference(parts[0].meta, part.meta)
        if key is not None:
            raise InputError(
                f"was measured with {key} {part.meta.get(key)}, {paths[0]} with {parts[0].meta.get(key)}",
                file=path,
                fix="give measurements of the same kind",
            )
    _rename_twins(parts)
    return joined(parts)


def difference(one: dict[str, Any], other: dict[str, Any]) -> str | None:
    """The first key of the meta that makes two measurements incomparable; None if there is none.

    Missing values are no difference. A step log names every CPU `cpu`, and a model as the user did, so for
    CPUs only the kind counts, and for models the shape.
    """
    on_cpu = one.get("device_kind") == other.get("device_kind") == "cpu"
    always = ("device_kind", "model_config", "dtype", "tp", "clock", "yardstick_us")
    keys: tuple[str, ...] = always if on_cpu else ("device", *always)
    for key in keys:
        values = [meta.get(key) for meta in (one, other)]
        if None not in values and values[0] != values[1]:
            return key
    return None


def _rename_twins(parts: list[StepSamples]) -> None:
    """Give two runs of the same name different names."""
    sources: set[str] = set()
    for number, part in enumerate(parts, start=1):
        names = set(part["source"].tolist())
        if names & sources:
            part.table["source"] = part["source"].astype(object) + f"#{number}"
            part.table["source"] = part.table["source"].astype(str)
        sources |= set(part["source"].tolist())


def _is_samples(path: Path) -> bool:
    with reading(path) as text:
        return text.readline().startswith("# blis-py samples ")


def with_model_config(meta: dict[str, Any], given: str | Path | None = None) -> dict[str, Any]:
    """The meta with the model's configuration, so that a run needs only the profile.

    Args:
        given: a HuggingFace `config.json` or its folder; without one, that of the model's own folder or the
            bundled one of its name is used, if there is any.
    """
    if given is None and meta.get("model_config") is not None:
        return meta
    path = Path(given) if given is not None else _config_of(str(meta.get("model") or ""))
    if path is None:
        return meta
    path = path / "config.json" if is_folder(path) else path
    return {**meta, "model_config": dict(ConfigFile.read(path).values)}


def _config_of(model: str) -> Path | None:
    if is_file(Path(model) / "config.json"):
        return Path(model) / "config.json"
    try:
        return find_profile("models", model)
    except InputError:
        return None
