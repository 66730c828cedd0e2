"""Block-diffusion clients: their parameters in a workload, and the rounds of every block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from blis_py.core.request import Request
from blis_py.errors import InputError
from blis_py.requests.streams import stream
from blis_py.requests.table import RequestTable
from blis_py.workload.diffusion_steps import Drawn, Ints, RecordedSteps, Sequences, Steps, steps_from_mapping

KEYS = ("kind", "block_size", "steps", "commit_rounds")
KINDS = ("autoregressive", "diffusion")
_LABELS = ("algorithm", "parameters", "commit_rounds")


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Denoise rounds per block, and the settings they were measured with."""

    steps: Steps
    commit_rounds: int = 1
    """Forwards of a block beyond its denoise rounds: 1, or 0 if the last counted round itself changed
    nothing."""
    algorithm: str | None = None
    """None = not given in the workload."""
    parameters: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class DiffusionClient:
    """Block-diffusion parameters of a client."""

    block_tokens: int
    measured: tuple[MeasuredSteps, ...]
    """At least one; several differ in algorithm or parameters."""

    @property
    def kind(self) -> str:
        return "diffusion"

    def choose(self, algorithm: str | None, parameters: Mapping[str, Any]) -> MeasuredSteps:
        """The measurements with this algorithm (None: the first) and these parameters.

        Raises:
            InputError: no such measurements.
        """
        for each in self.measured:
            known = each.parameters or {}
            fits = all(name in known and known[name] == value for name, value in parameters.items())
            if fits and algorithm in (None, each.algorithm):
                return each
        there = ", ".join(_label(each) for each in self.measured)
        requested = f"{algorithm or 'any algorithm'}{_parameters(parameters)}"
        raise InputError(
            f"the workload has no step counts of {requested}",
            key="--dllm-config" if algorithm is None else "--dllm-algorithm",
            fix=f"it has those of {there}; add others under steps, labelled with algorithm and parameters",
        )


def _label(each: MeasuredSteps) -> str:
    return f"{each.algorithm or 'an algorithm it does not name'}{_parameters(each.parameters or {})}"


def _parameters(values: Mapping[str, Any]) -> str:
    return f" ({', '.join(f'{name} {value}' for name, value in values.items())})" if values else ""


def diffusion_client(
    values: Mapping[str, Any], *, key: str = "", file: str | Path | None = None
) -> DiffusionClient:
    """A kind from `{kind: diffusion, block_size: 32, commit_rounds: 1, steps: ...}`.

    `steps` is the argument of `steps_from_mapping`, optionally with labels beside it (`algorithm`,
    `parameters`, and `commit_rounds` if it differs), or a list of several so labelled.

    Raises:
        InputError: with the dotted key of the invalid value.
    """
    prefix = f"{key}." if key else ""
    for name in values:
        if name not in KEYS:
            fix = f"use {', '.join(KEYS)}"
            raise InputError("unknown key", file=file, key=f"{prefix}{name}", fix=fix)
    if values.get("kind") != "diffusion":
        raise InputError("must be diffusion", file=file, key=f"{prefix}kind", value=values.get("kind"))
    block = _whole(values.get("block_size", 32), 1, 4096, f"{prefix}block_size", file)
    commits = _whole(values.get("commit_rounds", 1), 0, 1, f"{prefix}commit_rounds", file)
    steps = values.get("steps")
    if not isinstance(steps, list):
        return DiffusionClient(block, (_measured(steps, commits, f"{prefix}steps", file),))
    if not steps:
        raise InputError("is empty", file=file, key=f"{prefix}steps", fix="describe the denoise steps")
    measured = []
    for index, each in enumerate(steps):
        where = f"{prefix}steps[{index}]"
        if not isinstance(each, Mapping) or "algorithm" not in each:
            fix = "name it, as --dllm-algorithm chooses by it"
            raise InputError("missing key", file=file, key=f"{where}.algorithm", fix=fix)
        measured.append(_measured(each, commits, where, file))
    return DiffusionClient(block, tuple(measured))


def _measured(values: Any, commits: int, key: str, file: str | Path | None) -> MeasuredSteps:
    if not isinstance(values, Mapping):
        return MeasuredSteps(steps_from_mapping(values, key=key, file=file))
    algorithm, parameters = values.get("algorithm"), values.get("parameters")
    if not isinstance(algorithm, str | None):
        raise InputError("must be a name", file=file, key=f"{key}.algorithm", value=algorithm)
    if not isinstance(parameters, Mapping | None):
        raise InputError("must map names to values", file=file, key=f"{key}.parameters", value=parameters)
    commits = _whole(values.get("commit_rounds", commits), 0, 1, f"{key}.commit_rounds", file)
    described = {name: value for name, value in values.items() if name not in _LABELS}
    return MeasuredSteps(steps_from_mapping(described, key=key, file=file), commits, algorithm, parameters)


def _whole(value: Any, least: int, most: int, key: str, file: str | Path | None) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InputError(f"must be a whole number from {least} to {most}", file=file, key=key, value=value)
    return value


# -- rounds of every block -----------------------------------------------------------------------------


def block_counts(prompt_tokens: Ints, output_tokens: Ints, max_tokens: Ints, block_tokens: int) -> Ints:
    """Number of blocks of the requests' outputs; the tail of the prompt shares the first one."""
    output = np.where(max_tokens > 0, np.minimum(output_tokens, max_tokens), output_tokens)
    counts: Ints = -(-(prompt_tokens % block_tokens + output) // block_tokens)
    return counts


def draw(
    steps: Drawn, rng: np.random.Generator, counts: Sequence[int], commit_rounds: int
) -> list[list[int]]:
    """Rounds (forwards) of each block of requests with the given numbers of blocks."""
    flat = steps.draw_requests(rng, counts) if isinstance(steps, Sequences) else steps.draw(rng, sum(counts))
    return _cut((flat + commit_rounds).tolist(), counts)


def _cut(flat: list[int], counts: Sequence[int]) -> list[list[int]]:
    rounds, start = [], 0
    for count in counts:
        rounds.append(flat[start : start + count])
        start += count
    return rounds


def draw_rounds(
    requests: Sequence[Request], steps: Drawn, *, block_tokens: int, seed: int
) -> list[list[int]]:
    """Rounds (forwards) of each block of each request, from a random stream of their own.

    They depend on the requests and the seed alone, not on the scheduling.

    Args:
        requests: with `output_tokens`, or else `max_tokens`, given.
    """
    prompt, output, limit = (
        np.array(column, dtype=np.int64)
        for column in (
            [request.prompt_tokens for request in requests],
            [request.output_tokens or request.max_tokens for request in requests],
            [request.max_tokens for request in requests],
        )
    )
    counts = block_counts(prompt, output, limit, block_tokens).tolist()
    return draw(steps, stream(seed, "diffusion", "steps"), counts, commit_rounds=1)


def table_rounds(
    table: RequestTable, measured: Mapping[str, MeasuredSteps], block_tokens: int, seed: int
) -> list[list[int]]:
    """Rounds of each block of every request of a table, with a stream of its own for each client.

    Args:
        measured: rounds by client.

    Raises:
        InputError: recorded rounds do not match the requests.
    """
    from blis_py.traces.tracev2_write import request_numbers

    numbers = request_numbers(table)
    rounds: list[list[int]] = [[] for _ in range(len(table))]
    for code, name in enumerate(table.client.names):
        rows = np.flatnonzero(table.client.codes == code)
        if not len(rows):
            continue
        lengths = (table.prompt_tokens[rows], table.output_tokens[rows], table.max_tokens[rows])
        counts = block_counts(*lengths, block_tokens).tolist()
        own, rng = measured[name], stream(seed, "client", name, "denoise steps")
        if isinstance(own.steps, RecordedSteps):
            flat = own.steps.of(rng, numbers[rows].tolist(), counts) + own.commit_rounds
            drawn = _cut(flat.tolist(), counts)
        else:
            drawn = draw(own.steps, rng, counts, own.commit_rounds)
        for row, each in zip(rows.tolist(), drawn, strict=True):
            rounds[row] = each
    return rounds
