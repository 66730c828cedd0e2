"""Resolution of module names in checkpoints to the weights of a decoder.

Quantised checkpoints list unquantised modules, each library in its own way: whole names
(`model.layers.0.self_attn.q_proj`), parts of names (`lm_head`, `gate`), globs (`model.layers.0.self_attn*`)
and regular expressions (`re:.*self_attn.*`). A name covers a matrix if it matches the matrix's own name or
that of a module that contains it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product

_SHARED = (
    *("mlp.shared_expert", "mlp.shared_experts", "feed_forward.shared_expert"),
    *("block_sparse_moe.shared_experts", "ffn.shared_experts", "mixer.shared_experts"),
)
MATRICES: Mapping[str, Sequence[Sequence[str]]] = {
    "attention": (
        ("self_attn.q_proj", "self_attn.qkv_proj", "attention.query_key_value", "mixer.q_proj"),
        ("self_attn.k_proj", "self_attn.qkv_proj", "attention.query_key_value", "mixer.k_proj"),
        ("self_attn.v_proj", "self_attn.qkv_proj", "attention.query_key_value", "mixer.v_proj"),
        ("self_attn.o_proj", "attention.dense", "mixer.o_proj"),
    ),
    "latent": (
        (
            *("self_attn.q_a_proj", "self_attn.q_b_proj", "self_attn.q_proj", "self_attn.kv_a_proj_with_mqa"),
            *("attn.wq_a", "attn.wq_b", "attn.wkv"),
        ),
        ("self_attn.kv_b_proj",),
        ("self_attn.o_proj", "attn.wo_a", "attn.wo_b"),
    ),
    "indexer": (("self_attn.indexer.wq_b",),),
    "gdn": (("linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz"), ("linear_attn.out_proj",)),
    "kda": (("self_attn.q_proj", "self_attn.qkv_proj"), ("self_attn.o_proj",)),
    "mamba2": (("mixer.in_proj",), ("mixer.out_proj",)),
    "dense": (
        ("mlp.gate_proj", "mlp.gate_up_proj", "feed_forward.gate_proj"),
        ("mlp.up_proj", "mlp.gate_up_proj", "feed_forward.up_proj", "mixer.up_proj"),
        ("mlp.down_proj", "feed_forward.down_proj", "mixer.down_proj"),
    ),
    "shared": tuple(
        tuple(f"{experts}.{matrix}_proj" for experts in _SHARED) for matrix in ("gate", "up", "down")
    ),
    "experts": (
        (
            *("mlp.experts.gate_proj", "block_sparse_moe.experts.w1", "feed_forward.experts.gate_up_proj"),
            "ffn.experts.w1",
        ),
        (
            *("mlp.experts.up_proj", "block_sparse_moe.experts.w3", "feed_forward.experts.gate_up_proj"),
            *("ffn.experts.w3", "mixer.experts.up_proj"),
        ),
        (
            *("mlp.experts.down_proj", "block_sparse_moe.experts.w2", "feed_forward.experts.down_proj"),
            *("ffn.experts.w2", "mixer.experts.down_proj"),
        ),
    ),
    "beside": tuple(
        (f"experts.{matrix}_proj", f"moe.experts.{matrix}_proj") for matrix in ("gate", "up", "down")
    ),
}
"""Kind of weights -> its matrices, each with its possible names within a layer."""

_ROOTS = ("", "model.", "language_model.", "language_model.model.", "model.language_model.", "backbone.")
"""Possible prefixes of `layers` and `lm_head`."""
_IN_LAYER = re.compile(r"(\*\.?|(?:[a-z_]+\.)*)layers\.(\d+)(\*?)(?:\.(.+))?")
_ONE_EXPERT = re.compile(r"experts\.\d")
_MAX_NAMES, _MAX_GLOBS, _MAX_NUMBERED, _MAX_ALTERNATIVES = 20_000, 200, 10, 64
"""Far more than any checkpoint lists, and few enough to enumerate."""
_TOO_MANY = "there are far too many of them"


class ModuleNames:
    """Module names as listed by a checkpoint.

    Args:
        names: in any of the ways above.
        layers: number of layers of the model. Names of further layers (multi-token prediction) are
            ignored.

    Raises:
        ValueError: an unsupported name, with the reason.
    """

    def __init__(self, names: Iterable[str], layers: int) -> None:
        self._layers = layers
        self._in_layers: dict[str, set[int]] = {}
        """Name within a layer ("" for all of it) -> layers."""
        self._anywhere: list[str] = []
        for name in names:
            if _ONE_EXPERT.search(name):
                raise ValueError(f"{name!r} names a single expert, and all count alike here")
            for glob in _globs(name):
                self._add(glob)
            if len(self._in_layers) + len(self._anywhere) > _MAX_NAMES:
                raise ValueError(_TOO_MANY)
        globs = list(filter(_is_glob, self._anywhere))
        if len(globs) > _MAX_GLOBS or len(list(filter(_has_digit, globs))) > _MAX_NUMBERED:
            raise ValueError(_TOO_MANY)

    def _add(self, name: str) -> None:
        match = _IN_LAYER.fullmatch(name)
        if match is None:
            self._anywhere.append(name)
        elif match[1] in (*_ROOTS, "*", "*."):
            number, below = match[2], match[4] or ""
            those = (layer for layer in range(self._layers) if str(layer).startswith(number))
            layers = set(those) if match[3] else {int(number[:9])} & set(range(self._layers))
            self._in_layers.setdefault(below, set()).update(layers)

    def layers_of(self, kind: str) -> list[set[int]]:
        """For each matrix of a kind, the layers in which it is covered."""
        return [self._covered(names) for names in MATRICES[kind]]

    def covers_head(self) -> bool:
        """Whether the LM head is covered."""
        heads = [root + "lm_head" for root in _ROOTS] + ["head"]
        return any(_covers(name, head) for name in self._anywhere for head in heads)

    def _covered(self, matrix: Sequence[str]) -> set[int]:
        layers: set[int] = set()
        for name, those in self._in_layers.items():
            if not name or any(_covers(name, own, from_start=True) for own in matrix):
                layers |= those
        for name in self._anywhere:
            if _is_glob(name) and _has_digit(name):
                layers.update(layer for layer in range(self._layers) if self._fits(name, layer, matrix))
            elif self._fits(name, 0, matrix):
                return set(range(self._layers))
        return layers

    def _fits(self, name: str, layer: int, matrix: Sequence[str]) -> bool:
        return any(_covers(name, f"{root}layers.{layer}.{own}") for root in _ROOTS for own in matrix)


def _covers(name: str, module: str, from_start: bool = False) -> bool:
    """Whether a listed name denotes a module or one that contains it."""
    parts = module.split(".")
    if _is_glob(name):
        return any(fnmatchcase(".".join(parts[:end]), name) for end in range(1, len(parts) + 1))
    listed = name.split(".")
    starts = (0,) if from_start else range(len(parts) - len(listed) + 1)
    return any(parts[start : start + len(listed)] == listed for start in starts)


def _is_glob(name: str) -> bool:
    return any(sign in name for sign in "*?[")


def _has_digit(name: str) -> bool:
    return any(letter.isdigit() for letter in name)


# -- regular expressions --------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"\\(?P<escaped>[^a-zA-Z0-9])"
    r"|(?P<number>\\d[+*]?|\[0-9\][+*]?)"
    r"|(?P<any>\.[*+])"
    r"|(?P<one>\.)"
    r"|\((?:\?:)?(?P<choice>[\w|]*)\)(?P<optional>\??)"
    r"|(?P<literal>[\w-])"
)


def _globs(name: str) -> Iterator[str]:
    """A listed name as globs: itself, or the equivalents of a simple regular expression.

    Regular expressions of untrusted files are not executed: matching can take exponential time.

    Raises:
        ValueError: an unsupported expression, or too many alternatives.
    """
    if not name.startswith("re:"):
        yield name
        return
    expression = name.removeprefix("re:").removeprefix("^")
    end = "" if expression.endswith("$") else "*"
    parts = list(_tokens(name, expression.removesuffix("$")))
    alternatives = 1
    for part in parts:
        alternatives *= len(part)
    if alternatives > _MAX_ALTERNATIVES:
        raise ValueError(f"{name!r} has too many alternatives")
    for chosen in product(*parts):
        yield "".join(chosen) + end


def _tokens(name: str, expression: str) -> Iterator[Sequence[str]]:
    place = 0
    while place < len(expression):
        token = _TOKEN.match(expression, place)
        if token is None or expression[token.end() : token.end() + 1] in tuple("*+?{"):
            raise ValueError(f"{name!r} is not understood; plain names, globs and simple expressions are")
        place = token.end()
        if token["choice"] is not None:
            yield (*token["choice"].split("|"), *([""] if token["optional"] else []))
        elif token["any"] or token["number"]:
            yield ("*",)
        elif token["one"]:
            yield ("?",)
        else:
            yield (token["escaped"] or token["literal"],)
