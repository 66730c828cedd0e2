"""Training range of the `trained` latency model, and the parts of a run beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from blis_py.hardware.gpu import GpuSpec, is_of_amd
from blis_py.models.model_shape import ModelShape

KINDS = {"dense": "dense models", "sparse": "mixtures of experts"}
_FORMATS = {"fp8": "FP8", "int8": "INT8", "fp4": "FP4"}


@dataclass(frozen=True)
class Learned:
    """Summary of the measurements in the training data."""

    tp: Mapping[str, Mapping[str, tuple[int, ...]]] = field(default_factory=dict)
    """Kind and format of the weights, as `dense FP8` -> names of GPUs -> TP degrees."""
    longest_tokens: int = 0
    """Longest context."""

    def beyond(self, shape: ModelShape, gpu: GpuSpec, tp: int, longest_tokens: int = 0) -> str:
        """The unmeasured aspects in one line; empty if there are none, or if the range is unknown.

        Args:
            longest_tokens: length of the longest sequence.
        """
        missing = list(self._missing(shape, gpu, tp, longest_tokens)) if self.tp else []
        if not missing:
            return ""
        amd = f"not validated for {servers_of_amd(gpu)}; " if is_of_amd(gpu) else ""
        return (
            f"{amd}step times of what `trained` did not learn on: {'; '.join(missing)} (it learned on {self})"
        )

    def _missing(self, shape: ModelShape, gpu: GpuSpec, tp: int, longest_tokens: int) -> Iterator[str]:
        kind = kind_of(shape)
        degrees = self.tp.get(kind, {}).get(gpu.name, ())
        if tp not in degrees:
            yield f"{_kind_text(kind)} on {gpu.name}" + (f" TP{tp}" if degrees else "")
        if longest_tokens > self.longest_tokens:
            yield f"contexts of {longest_tokens:,} tokens"

    def __str__(self) -> str:
        kinds = [f"{_kind_text(kind)} on {', '.join(gpus)}" for kind, gpus in self.tp.items()]
        each = {tp for gpus in self.tp.values() for degrees in gpus.values() for tp in degrees}
        degrees = ", ".join(map(str, sorted(each)))
        return f"{'; '.join(kinds)}; TP {degrees}; contexts of up to {self.longest_tokens:,} tokens"


NOTHING_KNOWN = Learned()


def servers_of_amd(gpu: GpuSpec) -> str:
    """A GPU by AMD, and how far from a datasheet the servers on such GPUs are that were measured: the page of
    accuracy has them, with terms that were learned for their engine and kind of model."""
    return (
        f"servers on the {gpu.name}: those measured on AMD's GPUs, SGLang's with DeepSeek-R1, took "
        "up to 3.4 times as long as datasheets let expect"
    )


def kind_of(shape: ModelShape) -> str:
    """Dense or sparse, and the format in which its feed-forward weights are multiplied."""
    sparse = bool(shape.moe_layers)
    size = shape.weights.experts if sparse else shape.weights.dense
    form = (
        "16 bits" if size >= 2 else _FORMATS.get(shape.weights.arithmetic, "4 bits" if size < 1 else "8 bits")
    )
    return f"{'sparse' if sparse else 'dense'} {form}"


def _kind_text(kind: str) -> str:
    name, _, form = kind.partition(" ")
    return f"{KINDS[name]} in {form}"


def learned_on(measured: Iterable[tuple[ModelShape, GpuSpec, int, int]]) -> Learned:
    """A summary from the model, GPU, TP degree and longest context of each group of measurements."""
    covered: dict[str, dict[str, set[int]]] = {}
    longest = 0
    for shape, gpu, tp, tokens in measured:
        covered.setdefault(kind_of(shape), {}).setdefault(gpu.name, set()).add(tp)
        longest = max(longest, tokens)
    degrees = {
        kind: {gpu: tuple(sorted(tps)) for gpu, tps in gpus.items()} for kind, gpus in sorted(covered.items())
    }
    return Learned(degrees, longest)


def read_learned(values: Mapping[str, Any]) -> Learned:
    """Read the section of the coefficients' file; empty if it is absent.

    Raises:
        ValueError, TypeError: damaged.
    """
    if not values:
        return NOTHING_KNOWN
    degrees = {
        str(kind): {str(gpu): tuple(map(int, each)) for gpu, each in dict(gpus).items()}
        for kind, gpus in dict(values["tp"]).items()
    }
    if any(kind.partition(" ")[0] not in KINDS for kind in degrees):
        raise ValueError(f"unknown kind among {', '.join(degrees)}")
    return Learned(degrees, int(values["longest_tokens"]))
