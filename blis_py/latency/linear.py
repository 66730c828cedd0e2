"""Explicit coefficients per step feature, for queueing theory, parity tests and back-of-envelope models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from blis_py.core.features import StepFeatures
from blis_py.core.request import NEVER_NS
from blis_py.errors import InputError
from blis_py.latency.base import FrontendDelays, StepTime
from blis_py.latency.step_run import LAST_NS, PricedRun, StepRun, run_of, within_the_clock

_LARGEST_NS = 3.6e12
"""An hour: beyond any realistic price of a step, a sequence or a token."""
SCALAR_STEPS = 14
"""Runs up to this length are summed one by one, longer ones in numpy; at about this length the two cost the
same."""


@dataclass(frozen=True, slots=True)
class LinearCosts:
    """Nanoseconds per unit of each feature of `StepFeatures`, and per step."""

    step: float = 0.0
    prefill_seqs: float = 0.0
    prefill_tokens: float = 0.0
    prefill_pairs: float = 0.0
    prefill_kv_tokens: float = 0.0
    prefill_prompt_pairs: float = 0.0
    decode_seqs: float = 0.0
    decode_kv_tokens: float = 0.0
    max_context: float = 0.0
    emitted_rows: float = 0.0

    def __post_init__(self) -> None:
        for name in _COSTS:
            _check(f"linear.{name}", getattr(self, name))

    def fixed_ns(self, f: StepFeatures) -> float:
        """The part that does not depend on the context of the decodes."""
        return (
            self.step
            + self.prefill_seqs * f.prefill_seqs
            + self.prefill_tokens * f.prefill_tokens
            + self.prefill_pairs * f.prefill_pairs
            + self.prefill_kv_tokens * f.prefill_kv_tokens
            + self.prefill_prompt_pairs * f.prefill_prompt_pairs
            + self.decode_seqs * f.decode_seqs
            + self.emitted_rows * f.emitted_rows
        )


_COSTS = tuple(cost.name for cost in fields(LinearCosts))
_DELAYS = tuple(delay.name for delay in fields(FrontendDelays))


@dataclass(frozen=True, slots=True)
class LinearCoefficients:
    """GPU and host part of a step, and the front-end delays."""

    gpu: LinearCosts = field(default_factory=LinearCosts)
    host: LinearCosts = field(default_factory=LinearCosts)
    frontend: FrontendDelays = field(default_factory=FrontendDelays)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], file: str | None = None) -> LinearCoefficients:
        """Coefficients from `{gpu: {feature: ns}, host: {...}, frontend: {...}}`; all parts and keys
        optional."""
        _check_keys("linear", values, ("gpu", "host", "frontend"), file)
        gpu, host = (_numbers(part, values.get(part, {}), _COSTS, file) for part in ("gpu", "host"))
        frontend = _numbers("frontend", values.get("frontend", {}), _DELAYS, file)
        delays = FrontendDelays(**{name: round(value) for name, value in frontend.items()})
        return cls(LinearCosts(**gpu), LinearCosts(**host), delays)


class Linear:
    """Each part of a step costs `step` plus coefficient times feature, to the nearest ns.

    At least 1 ns in total. See `LatencyModel`.
    """

    name = "linear"
    provenance = "explicit linear coefficients"

    def __init__(self, coefficients: LinearCoefficients, hides_host: bool = False) -> None:
        self.coefficients, self._hides_host = coefficients, hides_host
        self.frontend = coefficients.frontend
        self.uses_max_context = coefficients.gpu.max_context > 0 or coefficients.host.max_context > 0

    def overlapped(self) -> Linear:
        """The model for overlapped host work: a step takes the maximum of GPU and host time."""
        return Linear(self.coefficients, hides_host=True)

    def step(self, features: StepFeatures) -> StepTime:
        kv, longest = features.decode_kv_tokens, features.max_context
        gpu, host = (
            int(cost.fixed_ns(features) + 0.5 + cost.decode_kv_tokens * kv + cost.max_context * longest)
            for cost in (self.coefficients.gpu, self.coefficients.host)
        )
        return StepTime(gpu if gpu + host else 1, host)

    def step_ns(self, features: StepFeatures) -> int:
        time = self.step(features)
        return time.overlapped_ns if self._hides_host else time.synchronous_ns

    def decode_run(
        self, features: StepFeatures, steps: int, start_ns: int = 0, until_ns: int = NEVER_NS
    ) -> StepRun:
        # Coefficients are non-negative: no later step is shorter, so this many suffice.
        steps = min(steps, max(1, (until_ns - start_ns - 1) // self.step_ns(features) + 1))
        if steps > SCALAR_STEPS:
            return self._in_numpy(features, steps, start_ns, until_ns)
        parts = [
            (cost.fixed_ns(features) + 0.5, cost.decode_kv_tokens, cost.max_context)
            for cost in (self.coefficients.gpu, self.coefficients.host)
        ]
        kv, longest = features.decode_kv_tokens, features.max_context
        ends_ns = []
        end_ns = start_ns
        for _ in range(steps):
            both = [int(fixed + per_kv * kv + per_longest * longest) for fixed, per_kv, per_longest in parts]
            end_ns += (max(both) if self._hides_host else sum(both)) or 1
            ends_ns.append(end_ns)
            if end_ns >= until_ns or end_ns > LAST_NS:
                break
            kv += features.decode_seqs
            longest += 1
        return PricedRun(ends_ns)

    def _in_numpy(self, features: StepFeatures, steps: int, start_ns: int, until_ns: int) -> PricedRun:
        """The same operations in the same order as `step`, on arrays."""
        done = np.arange(steps, dtype=np.float64)
        kv = done * features.decode_seqs + features.decode_kv_tokens
        longest = done + features.max_context
        parts = [
            cost.fixed_ns(features) + 0.5 + cost.decode_kv_tokens * kv + cost.max_context * longest
            for cost in (self.coefficients.gpu, self.coefficients.host)
        ]
        steps = len(within_the_clock(parts[0] + parts[1]))
        gpu, host = (part[:steps].astype(np.int64) for part in parts)
        total = np.maximum(gpu, host) if self._hides_host else gpu + host
        return run_of(np.maximum(total, 1), start_ns, until_ns)


def _numbers(part: str, values: Any, keys: tuple[str, ...], file: str | None) -> dict[str, float]:
    prefix = f"linear.{part}"
    _check_keys(prefix, values, keys, file)
    return {key: _check(f"{prefix}.{key}", value, file) for key, value in values.items()}


def _check_keys(key: str, values: Any, known: tuple[str, ...], file: str | None) -> None:
    if not isinstance(values, Mapping):
        raise InputError("must be a mapping", file=file, key=key, value=values)
    for name in values:
        if name not in known:
            fix = f"use {', '.join(known)}"
            raise InputError("unknown key", file=file, key=f"{key}.{name}", fix=fix)


def _check(key: str, value: Any, file: str | None = None) -> float:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not (number and 0 <= value <= _LARGEST_NS):
        problem = f"must be a number of nanoseconds from 0 to {_LARGEST_NS:g}"
        raise InputError(problem, file=file, key=key, value=value)
    return float(value)
