"""Typed access to a HuggingFace `config.json`; every error names file, key and value.

The properties of a model may be spread over three places: a multimodal model describes its language part
under `text_config` and some of it one level above, and NVIDIA's ModelOpt writes the quantisation into a
second file, `hf_quant_config.json`. They are read as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from blis_py.core.light_dataclass import dataclass
from blis_py.errors import InputError
from blis_py.files.json_files import load_object
from blis_py.files.paths import is_file

LARGEST_COUNT = (1 << 31) - 1
"""Beyond any size of a model."""
_ABOVE = ("quantization_config", "compression_config", "torch_dtype", "dtype", "tie_word_embeddings")
"""Keys of the language part that may stand one level above it."""
_BESIDE = ("architectures", "vision_config", "audio_config", "spatial_merge_size")
"""Keys of the outer level that apply to the language part too."""


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A mapping inside a config file. A key that is null counts as absent.

    Methods that take several keys read the first one present and, if there is none, return `default` or raise
    an error about the first.

    Raises:
        InputError: a key that is not text.
    """

    file: Path
    values: Mapping[str, Any]
    prefix: str = ""
    elsewhere: Mapping[str, tuple[Path, str]] = field(default_factory=dict)
    """Keys found in another place, with the file and their name there."""

    def __post_init__(self) -> None:
        for key in self.values:
            if not isinstance(key, str):  # permitted by YAML, where a profile repeats the config
                raise InputError(
                    "a key must be text", file=self.file, key=f"{self.prefix}{key}", fix="quote it"
                )

    @classmethod
    def read(cls, file: Path) -> ConfigFile:
        """The config, with its `text_config` if a multimodal model keeps the language part there, and with
        the `hf_quant_config.json` beside it.
        """
        fix = "give a HuggingFace config.json or the folder that holds one"
        config = cls.of(file, load_object(file, fix=fix))
        second = file.with_name(file.name.removesuffix("config.json") + "hf_quant_config.json")
        if not file.name.endswith("config.json") or not is_file(second):
            return config
        stated = cls(second, load_object(second)).required_section("quantization")
        return config._with_quantisation(stated)

    @classmethod
    def of(cls, file: Path, values: Mapping[str, Any]) -> ConfigFile:
        """The same for values already read.

        Raises:
            InputError: a key contradicts that of `text_config`.
        """
        config = cls(file, values)
        if "num_hidden_layers" in values or "text_config" not in values:
            return config
        inner = config.required_section("text_config")
        for key in _ABOVE[:2]:
            if config.has(key) and inner.has(key) and config.values[key] != inner.values[key]:
                raise config.error(key, "contradicts text_config." + key, fix="keep one of the two")
        above = [key for key in (*_ABOVE, *_BESIDE) if config.has(key) and not inner.has(key)]
        return cls(
            file,
            {**inner.values, **{key: values[key] for key in above}},
            inner.prefix,
            {key: (file, key) for key in above},
        )

    def _with_quantisation(self, stated: ConfigFile) -> ConfigFile:
        """Add values of the second file that this one does not contain."""
        own = self.section("quantization_config")
        if own is None:
            values = {"quant_method": "modelopt", **stated.values}
            place = (stated.file, "quantization")
        else:
            for key in ("quant_algo", "kv_cache_quant_algo"):
                if own.has(key) and stated.has(key) and own.values[key] != stated.values[key]:
                    problem = f"contradicts {own.file.name}"
                    raise stated.error(key, problem, stated.values[key], "keep one of the two")
            values = {
                **stated.values,
                **{key: value for key, value in own.values.items() if value is not None},
            }
            place = self._place("quantization_config")
        return ConfigFile(
            self.file,
            {**self.values, "quantization_config": values},
            self.prefix,
            {**self.elsewhere, "quantization_config": place},
        )

    def _place(self, key: str) -> tuple[Path, str]:
        return self.elsewhere.get(key, (self.file, self.prefix + key))

    def error(self, key: str, problem: str, value: object = None, fix: str | None = None) -> InputError:
        file, name = self._place(key)
        return InputError(problem, file=file, key=name, value=value, fix=fix)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def key(self, *keys: str) -> str:
        """The key that is present, or the first."""
        return next((key for key in keys if self.has(key)), keys[0])

    def check_alike(self, *keys: str) -> None:
        """Check that several names of one property have the same value.

        Raises:
            InputError: they differ.
        """
        first = self.key(*keys)
        for key in keys:
            if self.has(key) and self.values[key] != self.values[first]:
                raise self.error(key, f"contradicts {first}", self.values[key], "keep one of the two")

    def refuse(self, key: str, problem: str) -> None:
        """Refuse a model whose configuration has this key.

        Raises:
            InputError: always where the key is present: the model cannot be simulated.
        """
        if self.has(key):
            raise self.error(key, problem, self.values[key], "use another model")

    def count(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST_COUNT) -> int:
        """A whole number from `least` to `most`.

        Raises:
            InputError: it is not a whole number, or out of bounds.
        """
        key, value = self._find(keys, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}", value)
        if value > most:
            raise self.error(key, f"must be at most {most}", value)
        return value

    def number(self, *keys: str, default: float | None = None) -> float:
        """A positive number.

        Raises:
            InputError: it is not a number, not positive, or far too large.
        """
        key, value = self._find(keys, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "must be a number", value)
        if not 0 < value <= LARGEST_COUNT:  # a NaN is neither
            raise self.error(key, "is far too large" if value > 0 else "must be positive", value)
        return float(value)

    def text(self, *keys: str, default: str | None = None) -> str:
        """A string.

        Raises:
            InputError: it is not a string.
        """
        key, value = self._find(keys, default)
        if not isinstance(value, str):
            raise self.error(key, "must be a string", value)
        return value

    def flag(self, *keys: str, default: bool | None = None) -> bool:
        """A switch.

        Raises:
            InputError: it is neither true nor false.
        """
        key, value = self._find(keys, default)
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false", value)
        return value

    def items(self, key: str) -> Sequence[Any]:
        """A list; empty when absent.

        Raises:
            InputError: it is not a list.
        """
        key, value = self._find((key,), [])
        if not isinstance(value, list):
            raise self.error(key, "must be a list", value)
        return value

    def texts(self, key: str) -> Sequence[str]:
        """A list of strings; empty when absent.

        Raises:
            InputError: it is not a list of strings.
        """
        for item in self.items(key):
            if not isinstance(item, str):
                raise self.error(key, "must be a list of strings", item)
        return self.items(key)

    def section(self, key: str) -> ConfigFile | None:
        """A nested mapping, None when absent or empty."""
        return self.required_section(key) if self.values.get(key) else None

    def required_section(self, key: str) -> ConfigFile:
        """An object within the configuration.

        Raises:
            InputError: it is not an object.
        """
        key, value = self._find((key,), None)
        if not isinstance(value, dict):
            raise self.error(key, "must be an object", value)
        file, name = self._place(key)
        return ConfigFile(file, value, f"{name}.")

    def _find(self, keys: Sequence[str], default: Any) -> tuple[str, Any]:
        for key in keys:
            if self.has(key):
                return key, self.values[key]
        if default is None:
            raise self.error(keys[0], "missing", fix="use a complete HuggingFace config.json")
        return keys[0], default


def names_of(keys: Sequence[str], most: int = 6) -> str:
    """The first few of some keys, for a note."""
    stated = [key[:60] if key.isprintable() else ascii(key)[1:-1][:60] for key in keys[:most]]
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(stated) + more
