"""Algorithm, parameters and mode: the meaning of the `--dllm-*` flags."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from blis_py.core.diffusion_config import DiffusionConfig
from blis_py.errors import InputError
from blis_py.files.yaml_files import load_mapping
from blis_py.models.hf_config import ConfigFile
from engine.diffusion.blocks import Algorithm
from engine.diffusion.joint_threshold import JointThreshold
from engine.diffusion.low_confidence import LowConfidence
from engine.diffusion.top_k_per_step import TopKPerStep
from engine.models.config import find_config, load_model_config

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "LowConfidence": LowConfidence,
    "JointThreshold": JointThreshold,
    "TopKPerStep": TopKPerStep,
}
"""Frozen dataclasses; their fields are the keys of `--dllm-config`."""

_RANGES: dict[str, tuple[float, float]] = {
    "threshold": (0.0, 1.0),
    "edit_threshold": (0.0, 1.0),
    "max_post_edit_steps": (0, 10_000),
    "penalty_lambda": (0.0, math.inf),
    "tokens_per_step": (1, 10_000),
}
_MASK_TOKENS = {"LLaDA2MoeModelLM": 156895}
"""Mask token of architectures whose config.json does not name it."""


@dataclass(frozen=True, slots=True)
class DllmSettings:
    """Block-diffusion settings of the flags; algorithm and mode are independent."""

    algorithm: Algorithm
    fdfo: bool = True
    reuse_in_place: bool = True
    reloop: bool = True

    @property
    def parameters(self) -> dict[str, Any]:
        """Those of the algorithm, as `--dllm-config` names them."""
        algorithm: Any = self.algorithm
        return {field.name: getattr(algorithm, field.name) for field in fields(algorithm)}

    def core(self, block_tokens: int) -> DiffusionConfig:
        """The scheduler's part, for a model with blocks of this size."""
        return DiffusionConfig(block_tokens, self.fdfo, self.reuse_in_place, self.reloop)


def dllm_settings(
    algorithm: str = "LowConfidence",
    config_file: str | Path | None = None,
    *,
    fdfo: bool = True,
    reuse_in_place: bool = True,
    reloop: bool = True,
) -> DllmSettings:
    """Settings from `--dllm-algorithm NAME [--dllm-config file.yaml] --dllm-fdfo/--no-dllm-fdfo`.

    Raises:
        InputError: no such algorithm; a parameter it does not have, or out of range.
    """
    values = {} if config_file is None else load_mapping(Path(config_file))
    chosen = make_algorithm(algorithm, values, config_file)
    return DllmSettings(chosen, fdfo, reuse_in_place, reloop)


def make_algorithm(name: str, values: Mapping[str, Any], file: str | Path | None = None) -> Algorithm:
    """An algorithm with some of its parameters given.

    Raises:
        InputError: as for `dllm_settings`.
    """
    if name not in ALGORITHMS:
        fix = f"use one of {', '.join(ALGORITHMS)}"
        raise InputError("unknown algorithm", key="--dllm-algorithm", value=name, fix=fix)
    kind: Any = ALGORITHMS[name]
    types = {field.name: field.type for field in fields(kind)}
    for key, value in values.items():
        if key not in types:
            raise InputError("unknown key", file=file, key=key, fix=f"{name} takes {', '.join(types)}")
        _check_value(key, value, whole=types[key] == "int", file=file)
    algorithm: Algorithm = kind(**values)
    return algorithm


def _check_value(key: str, value: Any, *, whole: bool, file: str | Path | None) -> None:
    low, high = _RANGES[key]
    number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not number or not low <= value <= high:
        kind = "whole number" if whole else "number"
        bounds = f"of at least {low:g}" if high == math.inf else f"from {low:g} to {high:g}"
        raise InputError(f"must be a {kind} {bounds}", file=file, key=key, value=value)


def mask_token(model: str | Path) -> int:
    """Id of the mask token of a block-diffusion model.

    Raises:
        InputError: the model is autoregressive, or nothing says which token it is.
    """
    file, config = find_config(model), load_model_config(model)
    if config.mask_block == 1:
        fix = "use a block-diffusion model, or leave the --dllm flags out"
        raise InputError("not a block-diffusion model", file=file, key="block_diffusion", fix=fix)
    values = ConfigFile.read(file).values
    token = (values.get("block_diffusion") or {}).get("mask_token_id", values.get("mask_token_id"))
    token = _MASK_TOKENS.get(config.architecture) if token is None else token
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < config.vocab_size:
        fix = "give the id of the mask token"
        raise InputError(
            "missing or not a token", file=file, key="block_diffusion.mask_token_id", value=token, fix=fix
        )
    return token
