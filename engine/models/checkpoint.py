"""Load a HuggingFace safetensors checkpoint into a decoder, tensor by tensor."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from blis_py.errors import InputError
from blis_py.files.json_files import load_object
from engine.layers.fp8 import dequantised, quantised
from engine.models.config import ModelConfig
from engine.models.decoder import Decoder
from engine.models.places import places, scales
from engine.models.stacked_experts import BLOCKS, SCALES, Slice, dequantised_mxfp4, members

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_DTYPES = frozenset({"BF16", "F16", "F32", "F64"})
_FP8 = "F8_E4M3"
_SCALES = ("_scale", "_scale_inv")
"""Ends of the names of scales; those of activations and of keys and values are not used."""
_COMPLETE = "download the checkpoint again, all of it"
_OTHER_MODEL = "use the config.json that belongs to these weights"


def load_checkpoint(decoder: Decoder, folder: Path) -> None:
    """Copy every tensor to its place; memory holds one tensor besides the decoder.

    Raises:
        InputError: a missing or damaged shard or tensor, an unknown tensor, another shape, or an unsupported
        dtype. Names file and tensor. The decoder is then partly filled: drop it.
    """
    targets, scale_of = places(decoder), scales(decoder)
    shards = _shards(folder)
    _check_names(decoder.config, folder, shards, targets)
    fp8_scales = _scales(shards) if decoder.config.fp8 else {}
    for file, names in shards.items():
        with _open(file) as shard:
            for name in names:
                if name in targets:
                    from_one = decoder.config.norms_from_one
                    _copy(shard, file, name, targets[name], scale_of.get(name), fp8_scales, from_one)
                elif within := _members(decoder.config, name):
                    stacked = _stacked(shard, file, name, shards, decoder.config.experts)
                    _copy_members(stacked, file, name, within, targets)


def _members(config: ModelConfig, name: str) -> dict[str, Slice]:
    """Names of the tensors that a stacked one holds."""
    return dict(members(name, config.experts)) if config.names.stacked else {}


def _stacked(shard: Any, file: Path, name: str, shards: dict[Path, list[str]], experts: int) -> Tensor:
    """`[experts, ...]`, whose scales, if it is in MXFP4, may lie in another file."""
    try:
        values: Tensor = shard.get_tensor(name)
        if name.endswith(BLOCKS):
            scales_name = name.removesuffix(BLOCKS) + SCALES
            holder = next((other for other, names in shards.items() if scales_name in names), file)
            with _open(holder) as other:
                values = dequantised_mxfp4(values, other.get_tensor(scales_name))
    except SafetensorError:
        raise InputError("missing tensor", file=file, key=name, fix=_COMPLETE) from None
    if len(values) != experts:
        problem = f"{len(values)} experts where the config says {experts}"
        raise InputError(problem, file=file, key=name, fix=_OTHER_MODEL)
    return values


def _copy_members(
    stacked: Tensor, file: Path, name: str, within: dict[str, Slice], targets: dict[str, Tensor]
) -> None:
    with torch.no_grad():
        for own, piece in within.items():
            values, target = piece(stacked), targets[own]
            if values.shape != target.shape:
                problem = f"shape {list(values.shape)} of each where the config says {list(target.shape)}"
                raise InputError(problem, file=file, key=name, fix=_OTHER_MODEL)
            target.copy_(values)


def _scales(shards: dict[Path, list[str]]) -> dict[str, Tensor]:
    """Scales of the tensors in float8, by the names of these."""
    scales = {}
    for file, names in shards.items():
        with _open(file) as shard:
            for name in names:
                base, _, kind = name.rpartition(".weight_scale")
                if base and kind in ("", "_inv"):
                    scales[f"{base}.weight"] = shard.get_tensor(name)
    return scales


def _shards(folder: Path) -> dict[Path, list[str]]:
    """File -> names of its tensors; every file exists."""
    index = folder / INDEX
    if not index.is_file():
        file = folder / SINGLE
        if not file.is_file():
            fix = "use a checkpoint in safetensors format, or --load-format dummy"
            raise InputError(f"neither {SINGLE} nor {INDEX} found", file=folder, fix=fix)
        with _open(file) as shard:
            return {file: list(shard.keys())}
    shards: dict[Path, list[str]] = defaultdict(list)
    for name, file_name in _weight_map(index).items():
        shards[folder / file_name].append(name)
    for file in shards:
        if not file.is_file():
            raise InputError("missing shard", file=file, key=shards[file][0], fix=_COMPLETE)
    return shards


def _weight_map(index: Path) -> dict[str, str]:
    try:
        names = load_object(index)["weight_map"]
    except (InputError, KeyError) as error:
        raise InputError("no weight_map can be read", file=index, value=str(error), fix=_COMPLETE) from None
    if not isinstance(names, dict):
        raise InputError("must map tensors to files", file=index, key="weight_map", fix=_COMPLETE)
    for tensor, name in names.items():
        if not isinstance(name, str) or not _is_below(name):
            problem = "must be a file in the folder of the checkpoint"
            raise InputError(problem, file=index, key=f"weight_map.{tensor}", value=name, fix=_COMPLETE)
    return names


def _is_below(name: str) -> bool:
    """Whether a name, without resolving links, is a file of this folder: hubs link to files elsewhere."""
    path = PurePath(name)
    return bool(path.parts) and "\0" not in name and not path.anchor and ".." not in path.parts


def _check_names(
    config: ModelConfig, folder: Path, shards: dict[Path, list[str]], targets: dict[str, Tensor]
) -> None:
    files = {
        own: file
        for file, names in shards.items()
        for name in names
        for own in _members(config, name) or (name,)
    }
    missing = [name for name in targets if name not in files]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"missing tensor{more}", file=folder, key=missing[0], fix=_OTHER_MODEL)
    for name, file in files.items():
        if name not in targets and not _needless(name, config):
            raise InputError("unexpected tensor", file=file, key=name, fix=_OTHER_MODEL)


def _needless(name: str, config: ModelConfig) -> bool:
    """Whether a tensor, present in some checkpoints, is unused by the decoder."""
    if name == "lm_head.weight":
        return config.tied_embeddings
    if config.fp8 and name.endswith(_SCALES):
        return True
    if name.endswith(SCALES):
        return bool(_members(config, name.removesuffix(SCALES)))
    extra = range(config.num_layers, config.num_layers + config.extra_layers)
    return name.endswith("rotary_emb.inv_freq") or name.startswith(tuple(f"model.layers.{i}." for i in extra))


def _open(file: Path) -> Any:
    try:
        return safe_open(file, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise InputError(
            "not a readable safetensors file", file=file, value=str(error), fix=_COMPLETE
        ) from None


def _copy(
    shard: Any,
    file: Path,
    name: str,
    target: Tensor,
    scale: Tensor | None,
    scales: dict[str, Tensor],
    from_one: bool,
) -> None:
    try:
        header = shard.get_slice(name)
    except SafetensorError:
        raise InputError("missing tensor", file=file, key=name, fix=_COMPLETE) from None
    in_fp8 = header.get_dtype() == _FP8 and name in scales
    if header.get_dtype() not in _DTYPES and not in_fp8:
        fix = "use an unquantised checkpoint"
        raise InputError("unsupported dtype", file=file, key=name, value=header.get_dtype(), fix=fix)
    shape = list(header.get_shape())
    if shape != list(target.shape):
        problem = f"shape {shape} where the config says {list(target.shape)}"
        raise InputError(problem, file=file, key=name, fix=_OTHER_MODEL)
    if scale is not None and not in_fp8:
        problem = "not in float8, or without its scales"
        raise InputError(problem, file=file, key=name, value=header.get_dtype(), fix=_OTHER_MODEL)
    with torch.no_grad():
        if not in_fp8:
            target.copy_(shard.get_tensor(name))
            if from_one and name.endswith("norm.weight"):
                target.add_(1)
        elif scale is None:
            target.copy_(dequantised(shard.get_tensor(name), scales[name]))
        else:
            _store(target, scale, shard.get_tensor(name), scales[name])


def _store(target: Tensor, scale: Tensor, stored: Tensor, given: Tensor) -> None:
    """Keep a matrix in float8 with a scale per output, rounded once more where the scales are of blocks."""
    if given.numel() in (1, stored.shape[0]):
        target.copy_(stored)
        scale.copy_(given.reshape(-1).float().expand(scale.shape))
        return
    again, row_scale = quantised(dequantised(stored, given))
    target.copy_(again)
    scale.copy_(row_scale.squeeze(1))
