"""Checkpoints of the rows of public benchmarks: bundled models, or a format put on one.

A row names a model and a precision; the checkpoint in that format may not be bundled, and is then the bundled
one with the `quantization_config` of published checkpoints in that format.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from blis_py.files.bundled import root

_PER_TENSOR = {"quant_method": "fp8", "modules_to_not_convert": ["lm_head"]}
_BLOCKS = {**_PER_TENSOR, "weight_block_size": [128, 128]}
_MODELOPT = {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
QUANTISED: dict[str, dict[str, Any]] = {
    "fp8": {**_MODELOPT, "quant_algo": "FP8"},
    "fp8_block": _BLOCKS,
    "nvfp4": {**_MODELOPT, "quant_algo": "NVFP4"},
}
"""What published checkpoints of a format say, for models without a bundled one."""
MODELS: dict[tuple[str, str], tuple[str, str]] = {
    ("deepseek", "fp8"): ("deepseek-r1", ""),
    ("deepseek", "fp4"): ("deepseek-v3.1-nvfp4", ""),
    ("gpt-oss-120b", ""): ("gpt-oss-120b", ""),
    ("gpt-oss-20b", ""): ("gpt-oss-20b", ""),
    ("minimax", "fp8"): ("minimax-m2.5", ""),
    ("minimax", "fp4"): ("minimax-m2.5-nvfp4", ""),
    ("qwen3.5-397b", ""): ("qwen3.5-397b-a17b", ""),
    ("qwen3.5-397b", "fp8"): ("qwen3.5-397b-a17b", "fp8_block"),
    ("qwen3.5-397b", "fp4"): ("qwen3.5-397b-a17b-nvfp4", ""),
    ("qwen3-235b", "fp8"): ("qwen3-235b-a22b-fp8", ""),
    ("qwen3-235b", "fp4"): ("qwen3-235b-a22b-nvfp4", ""),
    ("qwen3-235b", ""): ("qwen3-235b-a22b", ""),
    ("qwen3-32b", ""): ("qwen3-32b", ""),
    ("qwen3-32b", "fp8"): ("qwen3-32b", "fp8"),
    ("qwen3-32b", "fp4"): ("qwen3-32b", "nvfp4"),
    ("qwen3-30b", ""): ("qwen3-30b-a3b", ""),
    ("qwen3-30b", "fp8"): ("qwen3-30b-a3b-fp8", ""),
    ("llama-3.1-8b", ""): ("llama-3.1-8b", ""),
    ("llama-3.1-8b", "fp8"): ("llama-3.1-8b", "fp8"),
    ("llama-3.1-8b", "fp4"): ("llama-3.1-8b", "nvfp4"),
    ("llama-3.1-70b", ""): ("llama-3.1-70b", ""),
    ("llama-3.1-70b", "fp8"): ("llama-3.1-70b-fp8", ""),
    ("llama-3.1-70b", "fp4"): ("llama-3.1-70b", "nvfp4"),
    ("llama-3.1-405b", "fp8"): ("llama-3.1-405b", "fp8"),
    ("kimi-k2.5", "fp4"): ("kimi-k2.5-nvfp4", ""),
    ("kimi-k2.5", ""): ("kimi-k2.5", ""),
    ("kimi-k2", ""): ("kimi-k2", ""),
    ("kimi-k2", "fp8"): ("kimi-k2", ""),
}
"""Part of a model's name and precision -> bundled model, and the format put on it."""
_SPELT = {"llama-3.3-70b": "llama-3.1-70b", "deepseek-r1": "deepseek", "deepseek-v3": "deepseek"}


def checkpoint_of(model: str, precision: str, gemm_form: str) -> tuple[str, str] | None:
    """The bundled model and the format put on it, which may be none; None where no configuration is known.

    Args:
        gemm_form: form of FP8 by which the row was multiplied.
    """
    name = model.lower().rpartition("/")[2]
    for old, new in _SPELT.items():
        name = name.replace(old, new)
    for (part, wanted), (found, form) in MODELS.items():
        if name.startswith(("nvidia-" + part, part)) and wanted == precision:
            return found, gemm_form if form == "fp8" and gemm_form in QUANTISED else form
    return None


@cache
def config_of(name: str, form: str) -> str:
    """Folder with the configuration of a bundled model in another format."""
    config = json.loads((root("profiles") / "models" / f"{name}.json").read_text())
    section = {**QUANTISED[form]}
    if "text_config" in config and form == "fp8_block":
        section["modules_to_not_convert"] = ["lm_head", "*.mlp.gate", "*.mlp.shared_expert_gate"]
    folder = Path(tempfile.mkdtemp(prefix="points-")) / f"{name}-{form}"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": section}))
    return str(folder)
