"""Notes on the reliability of a result: on the model, and on the priced steps."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from blis_py.core.features import StepFeatures
from blis_py.core.light_dataclass import dataclass
from blis_py.hardware.gpu import GIVEN_LINK, GpuSpec
from blis_py.latency.base import LatencyModel
from blis_py.models.model_shape import PRICED_AS_FULL, ModelShape


def model_notes(shape: ModelShape, gpu: GpuSpec | None, by_operators: bool = False) -> tuple[str, ...]:
    """Assumptions where the model's config contains more, or less, than is priced.

    Args:
        gpu: None if the device has no datasheet.
        by_operators: every operator is priced in its own format, and windows as windows.
    """
    if gpu is None:
        return shape.notes
    if by_operators:
        return tuple(note for note in shape.notes if PRICED_AS_FULL not in note)
    notes = list(shape.notes)
    if not gpu.has_roofline:
        notes.append(
            f"the {gpu.name} is known by its datasheet alone: small all-reduces and products in 8 bits are "
            "priced with the efficiencies of other GPUs"
        )
    if shape.weights.arithmetic != "fp4" or not gpu.fp4_flops:
        return tuple(notes)
    four_bit = (
        f"the 4-bit weights of {shape.name} are priced as expanded to 16 bits before they are multiplied: "
        f"where the engine uses the 4-bit arithmetic of the {gpu.name}, prompts are faster"
    )
    return (*notes, four_bit)


def link_notes(gpu: GpuSpec | None, tp: int) -> tuple[str, ...]:
    """Assumptions about links that differ from the GPU's profile, or are not priced."""
    if gpu is None or tp == 1:
        return ()
    if gpu.link_source == GIVEN_LINK:
        like = f"the {gpu.name}'s own link" if gpu.has_fabric else "PCIe cards"
        latency_us = gpu.all_reduce_overhead_ns / 1e3
        stated = f"{gpu.link_bytes_per_s / 1e9:g} GB/s, as given"
        return (
            f"all {tp} GPUs are linked by {stated}; a small all-reduce takes {latency_us:g} µs as on {like}",
        )
    if tp <= gpu.link_gpus:
        return ()
    return (
        f"TP{tp} is more GPUs than the {gpu.link_gpus} {gpu.name} that a link joins: the step times take "
        "them as if one link joined them all",
    )


@dataclass(slots=True)
class Outside:
    """Steps priced so far, and those of them outside the measured range."""

    how: str = ""
    """Method of extrapolation, for the end of the note."""
    priced: int = 0
    steps: int = 0
    farthest: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Feature -> largest priced value, largest measured value."""

    def clear(self) -> None:
        """Reset the counters."""
        self.priced = self.steps = 0
        self.farthest.clear()

    def count_run(self, f: StepFeatures, steps: int, kv_limit: int, context_limit: int) -> bool:
        """Count a run of decode steps with a measured range of cached tokens and longest context; only its
        last step is examined unless that lies outside.

        Args:
            f: features of the first step; an unknown (negative) longest context lies inside.
            kv_limit, context_limit: -1, -2 if the batch itself lies outside.

        Returns:
            Whether any step lies outside; the caller then reports the `farthest` of the last one.
        """
        self.priced += steps
        seqs, done = f.decode_seqs, steps - 1
        longest = f.max_context + done if f.max_context >= 0 else -1
        if f.decode_kv_tokens + done * seqs <= kv_limit and longest <= context_limit:
            return False
        inside = (kv_limit - f.decode_kv_tokens) // seqs + 1
        if f.max_context >= 0:
            inside = min(inside, context_limit - f.max_context + 1)
        self.steps += steps - min(max(inside, 0), steps)
        return True

    def record(self, name: str, value: int, measured: int) -> None:
        """Record a value above the measured range."""
        if value > measured:
            self.farthest[name] = max(self.farthest.get(name, (0, 0)), (value, measured))

    def notes(self) -> list[str]:
        """Notes for the reader of the results; empty if all steps lie inside."""
        if not self.steps:
            return []
        worst = sorted(self.farthest.items(), key=lambda item: -item[1][0] / max(item[1][1], 1))
        stated = ", ".join(f"{name} up to {far:,}, measured up to {most:,}" for name, (far, most) in worst)
        share = 100 * self.steps / self.priced
        rounded = f"{share:.1f}" if share >= 0.1 else "less than 0.1"
        return [f"{rounded} % of the steps lie outside the measured domain: {stated}{self.how}"]


@dataclass(slots=True)
class LargestBatch:
    """The largest batches that were priced, beside that which a fitted gap per sequence had seen and that of
    the largest CUDA graph."""

    most: int
    """0 = no such gap, or no limit of it."""
    prices: tuple[dict[Any, Any], ...] = ()
    """Kept by batch, and not priced again: forgotten with the largest one."""
    graph: int = 0
    launch_ns: float = 0.0
    """Least time of a decode step without a graph."""
    largest: int = 0
    eager: int = 0
    """Largest decode step without a graph; 0 = all have one."""

    def record(self, seqs: int) -> None:
        if seqs > self.largest:
            self.largest = seqs

    def record_eager(self, seqs: int) -> None:
        if seqs > self.eager:
            self.eager = seqs

    def clear(self) -> None:
        """Reset the counters."""
        self.largest = self.eager = 0
        for each in self.prices:
            each.clear()

    def notes(self) -> list[str]:
        notes = []
        if self.most and self.largest > self.most:
            notes.append(
                f"steps of up to {self.largest:,} sequences: the fitted gap per sequence was seen up to "
                f"{self.most:,} and does not grow beyond"
            )
        if self.eager:
            notes.append(
                f"decode steps of up to {self.eager:,} sequences run without a CUDA graph (the largest "
                f"holds {self.graph:,}): each takes at least {self.launch_ns / 1e6:.3g} ms of launches "
                "(latency.cuda_graph_max_size)"
            )
        return notes


def domain_notes(latency: LatencyModel) -> tuple[str, ...]:
    """Notes on steps outside the measured range; empty for models without one."""
    outside = getattr(latency, "outside", None)
    return tuple(outside.notes()) if outside is not None else ()


def forget(latency: LatencyModel) -> None:
    """Reset the counters of a model."""
    outside = getattr(latency, "outside", None)
    if outside is not None:
        outside.clear()
