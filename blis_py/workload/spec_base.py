"""Building blocks of the workload spec: strict models, and distributions of token counts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from blis_py.core.bounds import LAST_NS, MAX_SEED, MAX_TOKENS
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.workload import lengths
from blis_py.workload.lengths import Lengths


def as_text(value: Any) -> Any:
    """Names as text: YAML reads an unquoted 2 or 007 as a number."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def as_tuple(value: Any) -> Any:
    """A list as a tuple; null is an empty one."""
    return tuple(value or ()) if value is None or isinstance(value, list) else value


Text = Annotated[str, BeforeValidator(as_text), WithJsonSchema({"type": ["string", "number"]})]
Whole = Annotated[int, BeforeValidator(_whole), Field(ge=0, lt=2**53)]
Tokens = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=MAX_TOKENS)]
TimeUs = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=LAST_NS // 1000)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-MAX_SEED, le=MAX_SEED)]


class Strict(BaseModel):
    """The string below a key explains it; only `docs/make_workload_spec.py` reads these."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


class DistributionSpec(Strict):
    """`params` as in `lengths.REQUIRED`; `file` (empirical only) holds `tokens: weight`, YAML or JSON."""

    type: Literal[
        "gaussian", "uniform", "exponential", "lognormal", "pareto_lognormal", "constant", "empirical"
    ]
    """The law."""
    params: dict[Text, float] = Field(default_factory=dict)
    """`mean`, `std_dev`, `min`, `max` of `gaussian`; `min`, `max` of `uniform`; `mean` of `exponential`;
    `mu`, `sigma` of `lognormal`; `alpha`, `xm`, `mu`, `sigma`, `mix_weight` of `pareto_lognormal`; `value` of
    `constant`; a weight for each number of tokens of `empirical`. Most take `min` and `max`."""
    file: str = ""
    """YAML or JSON file with the weights of `empirical`, instead of `params`."""


def lengths_of(spec: DistributionSpec, key: str, path: Path | None) -> Lengths:
    """The distribution of a spec; `key` is its location in the file `path`.

    Raises:
        InputError: missing, unknown or out-of-range parameters, or an invalid file.
    """
    params = dict(spec.params)
    if spec.file:
        if spec.type != "empirical" or params:
            raise InputError(
                "a file gives the weights of an empirical distribution without params",
                file=path,
                key=f"{key}.file",
                value=spec.file,
                fix="remove one of the two",
            )
        path = (path.parent if path else Path()) / spec.file
        params = _weights(path)
        key = "file"
    distribution = Lengths(spec.type, params)
    lengths.check(distribution, key=key, file=path)
    return distribution


def _weights(path: Path) -> dict[str, float]:
    weights = {}
    for tokens, weight in load_mapping(path).items():
        number = isinstance(weight, (int, float)) and not isinstance(weight, bool)
        if not number or not 0 <= weight <= lengths.LARGEST_WEIGHT:
            problem = f"a weight must be a number from 0 to {lengths.LARGEST_WEIGHT:g}"
            raise InputError(problem, file=path, key=str(tokens), value=weight)
        weights[str(tokens)] = float(weight)
    return weights
