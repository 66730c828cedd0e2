"""Initialisation of a decoder: from a safetensors checkpoint, or with deterministic random weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from blis_py.errors import InputError
from engine.models.checkpoint import load_checkpoint
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.dummy import fill_random


def build_model(
    config: ModelConfig,
    *,
    device: torch.device | str,
    dtype: torch.dtype | None = None,
    load_format: str = "safetensors",
    path: Path | str | None = None,
    seed: int = 0,
    max_positions: int | None = None,
) -> Decoder:
    """A decoder with its weights on `device`, ready to run.

    Args:
        dtype: of weights and activations; None = bfloat16 on a GPU, float32 on the CPU.
        load_format: a key of `LOAD_FORMATS`.
        path: the checkpoint folder, or its config.json; ignored for `dummy`.
        seed: of the dummy weights.
        max_positions: longest sequence to prepare for; None = the model's own limit.

    Raises:
        InputError: unknown format; more positions than the model has; weights larger than the memory; an
            incomplete or foreign checkpoint.
    """
    device = torch.device(device)
    if load_format not in LOAD_FORMATS:
        fix = f"use one of {', '.join(LOAD_FORMATS)}"
        raise InputError("unknown format", key="--load-format", value=load_format, fix=fix)
    limit = config.max_position_embeddings
    if max_positions is not None and not 0 < max_positions <= limit:
        raise InputError(
            f"must be 1 to {limit}, the model's limit", key="--max-model-len", value=max_positions
        )
    decoder = empty_decoder(config, device, dtype or default_dtype(device))
    LOAD_FORMATS[load_format](decoder, path, seed)
    decoder.set_max_positions(max_positions or limit)
    return decoder


def default_dtype(device: torch.device | str) -> torch.dtype:
    """bfloat16 on a GPU, float32 on the CPU."""
    return torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of all weights as the decoder keeps them."""
    return _bytes(shapes_only(config, dtype))


def empty_decoder(config: ModelConfig, device: torch.device | str, dtype: torch.dtype) -> Decoder:
    """A decoder with uninitialised weights.

    Raises:
        InputError: not enough memory.
    """
    device, decoder = torch.device(device), shapes_only(config, dtype)
    needed, there = _bytes(decoder), _memory_bytes(device)
    if needed > there:
        problem = f"the weights need {needed / 1e9:.1f} GB, {device} has {there / 1e9:.1f} GB"
        raise InputError(problem, key="--model", value=config.architecture, fix="use a smaller model")
    decoder.to_empty(device=device)
    return decoder.eval()


def shapes_only(config: ModelConfig, dtype: torch.dtype) -> Decoder:
    """A decoder on torch's meta device: weights without memory."""
    with torch.device("meta"):
        return Decoder(config, dtype)


def _bytes(decoder: Decoder) -> int:
    return sum(weight.numel() * weight.element_size() for weight in decoder.parameters())


def _memory_bytes(device: torch.device) -> int:
    """Free memory on a GPU; total memory of the host."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _load(decoder: Decoder, path: Path | str | None, seed: int) -> None:
    if path is None or not Path(path).exists():
        fix = "give a folder with *.safetensors, or use --load-format dummy"
        raise InputError("no checkpoint folder", key="--model", value=path and str(path), fix=fix)
    folder = Path(path)
    load_checkpoint(decoder, folder.parent if folder.is_file() else folder)


def _dummy(decoder: Decoder, path: Path | str | None, seed: int) -> None:
    fill_random(decoder, seed)


LOAD_FORMATS: dict[str, Callable[[Decoder, Path | str | None, int], None]] = {
    "safetensors": _load,
    "dummy": _dummy,
}
