"""Server settings from a checkpoint: chat template, sampling defaults, and its folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blis_py.errors import InputError
from blis_py.files.opening import read_text
from blis_py.serve.chat import PLAIN_TEMPLATE

_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class CheckpointWords:
    """Chat template, special tokens by name, and sampling defaults."""

    template: str = PLAIN_TEMPLATE
    special: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)


def checkpoint_words(folder: Path, template: str | None = None) -> CheckpointWords:
    """The words of a checkpoint folder.

    Args:
        template: file of a chat template that replaces the checkpoint's.

    Raises:
        InputError: a damaged file.
    """
    tokenizer = _json(folder / "tokenizer_config.json")
    defaults = _json(folder / "generation_config.json")
    own = folder / "chat_template.jinja"
    text = read_text(Path(template)) if template else read_text(own) if own.is_file() else None
    return CheckpointWords(
        text or _template(tokenizer.get("chat_template")) or PLAIN_TEMPLATE,
        {name: _text(tokenizer.get(name)) for name in _SPECIAL},
        {name: defaults[name] for name in _DEFAULTS if defaults.get(name) is not None},
    )


def _template(given: Any) -> str | None:
    """The template; of several named ones the default."""
    if isinstance(given, list):
        named = {one.get("name"): one.get("template") for one in given if isinstance(one, dict)}
        return named.get("default")
    return given if isinstance(given, str) else None


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}", file=file, fix="download the checkpoint again") from None
    return value if isinstance(value, dict) else {}


def local_folder(model: str) -> str:
    """A model's folder: a name like `org/model` is looked up in the local Hugging Face cache.

    Nothing is downloaded.

    Raises:
        InputError: the model is not in the local cache.
    """
    if Path(model).exists() or model.count("/") != 1:
        return model
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = cache / f"models--{model.replace('/', '--')}"
    revision = repository / "refs" / "main"
    if revision.is_file():
        snapshot = repository / "snapshots" / read_text(revision).strip()
        if (snapshot / "config.json").is_file():
            return str(snapshot)
    fix = f"download it first, or give a folder (looked in {cache})"
    raise InputError("not in the local cache", key="--model", value=model, fix=fix)
