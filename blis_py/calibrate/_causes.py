"""Findings of the autopsy on a cause: the difference in numbers, and a suggested fix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from blis_py.calibrate.kinds import ROUNDS_FIX, Blocks, flag
from blis_py.calibrate.parity import Parity
from blis_py.calibrate.recorded import Lengths
from blis_py.calibrate.step_bias import Bias, StepBias
from blis_py.core.config import SchedulerConfig

Shares = Mapping[tuple[str, str], int]
"""Nanoseconds by metric."""
Words = tuple[str, str]
"""The finding and the suggested fix; empty if there is none."""

_OF_CAPACITY = ("num_kv_blocks", "block_size")
_PROFILE = "`blis engine profile`, then `blis profile fit`"
_ROUNDING_NS = 5_000
"""Smaller shares result from traces in whole microseconds."""


@dataclass(frozen=True, slots=True)
class Findings:
    """All facts about a prediction and the run it is compared with."""

    engine: SchedulerConfig
    simulated: SchedulerConfig
    recorded: Lengths
    """Prompt and output tokens of the requests compared, by id."""
    lengths: Lengths | None
    """The simulated ones, if they differ."""
    bias: StepBias
    batches: Parity
    own_workload: bool
    """Whether the simulated run had its own arrivals."""
    own_client: bool
    """Whether the run was measured by a client."""
    engine_blocks: Blocks | None = None
    simulated_blocks: Blocks | None = None
    """Both, where answers come in blocks."""

    def of(self, cause: str, shares: Shares) -> Words:
        """The finding on a cause, a key of `autopsy.CAUSES`, and its fix."""
        if cause in self.bias.gpu:
            return self._regime(cause)
        words: dict[str, Callable[[Shares], Words]] = {
            "workload": self._workload,
            "kv_capacity": self._kv_capacity,
            "token_counts": self._token_counts,
            "rounds": self._rounds,
            "scheduler": self._scheduler,
            "host": self._host,
            "scatter": self._scatter,
            "stamps": self._stamps,
            "client": self._client,
        }
        return words[cause](shares)

    def _workload(self, shares: Shares) -> Words:
        if not self.own_workload:
            return "the prediction is for the recorded requests at their recorded times", ""
        if all(abs(share) <= _ROUNDING_NS for share in shares.values()):
            return "the simulated run had the same requests at the same times, to the microsecond", ""
        what = "the simulated run had other arrival times, shared prefixes, priorities or deadlines"
        return what, "replay the engine's own trace: `blis replay --trace RUN_DIR/trace.csv`"

    def _kv_capacity(self, shares: Shares) -> Words:
        engine, mine = self.engine, self.simulated
        if all(getattr(engine, name) == getattr(mine, name) for name in _OF_CAPACITY):
            return f"{engine.num_kv_blocks:,} blocks in both", ""
        fix = f"--num-kv-blocks {engine.num_kv_blocks}"
        if engine.block_size == mine.block_size:
            what = f"engine has {engine.num_kv_blocks:,} blocks, you simulated {mine.num_kv_blocks:,}"
            return what, fix
        what = (
            f"engine has {engine.num_kv_blocks:,} blocks of {engine.block_size} tokens, "
            f"you simulated {mine.num_kv_blocks:,} of {mine.block_size}"
        )
        return what, f"{fix} --block-size {engine.block_size}"

    def _token_counts(self, shares: Shares) -> Words:
        if not self.lengths:
            return "as recorded", ""
        both = [(real, self.lengths[i]) for i, real in self.recorded.items() if i in self.lengths]
        other = sum(real != guess for real, guess in both)
        if not other:
            return "the same for every request", ""
        (prompt, output), (my_prompt, my_output) = np.mean(both, axis=0).tolist()
        what = (
            f"{other:,} of {len(both):,} requests have others: outputs are {_longer(output, my_output)} than "
            f"simulated (mean {output:,.1f} against {my_output:,.1f}), "
            f"prompts {_longer(prompt, my_prompt)} ({prompt:,.1f} against {my_prompt:,.1f})"
        )
        return what, "replay the trace, which has the engine's: `blis replay --trace RUN_DIR/trace.csv`"

    def _rounds(self, shares: Shares) -> Words:
        assert self.engine_blocks is not None
        assert self.simulated_blocks is not None
        real, guess = self.engine_blocks.rounds, self.simulated_blocks.rounds
        other = sum(tuple(guess.get(number, ())) != tuple(own) for number, own in real.items())
        if not other:
            return "as recorded", ""
        mine, own = ([n for each in rounds.values() for n in each] or [0] for rounds in (guess, real))
        what = (
            f"{other:,} of {len(real):,} requests have others: a block takes {np.mean(own):,.1f} on average, "
            f"you simulated {np.mean(mine):,.1f}"
        )
        return what, ROUNDS_FIX

    def _scheduler(self, shares: Shares) -> Words:
        other = _different(self.engine, self.simulated, _OF_CAPACITY)
        if self.engine_blocks is not None and self.simulated_blocks is not None:
            other += _different(self.engine_blocks.config, self.simulated_blocks.config)
        if not other:
            return "the same in both", ""
        what = "; ".join(
            f"{name} is {real} in the engine, you simulated {mine}" for name, real, mine in other
        )
        return what, " ".join(_flag(name, real) for name, real, _ in other)

    def _regime(self, name: str) -> Words:
        bias = self.bias.gpu[name]
        if not bias.steps:
            return "there are none", ""
        total = sum(of_one.measured_ns for of_one in self.bias.gpu.values())
        share = bias.measured_ns / total if total else 0.0
        count = "1 step" if bias.steps == 1 else f"{bias.steps:,} steps"
        what = f"{count}, {share:.0%} of the model's time, {_priced(bias)}"
        if abs(bias.error) < 0.005:
            return what, ""
        contexts = "batch sizes and contexts"
        shapes = {"decode": contexts, "denoise": contexts, "padded": "batch sizes between the graphs'"}
        return what, f"measure more {name} steps ({shapes.get(name, 'prompt and chunk lengths')}): {_PROFILE}"

    def _host(self, shares: Shares) -> Words:
        bias = self.bias.host
        if not bias.steps:
            return "there are no steps", ""
        what = (
            f"a step takes {bias.measured_ns / bias.steps / 1e6:.3f} ms beside the model, "
            f"you simulated {bias.predicted_ns / bias.steps / 1e6:.3f}"
        )
        if abs(bias.measured_ns - bias.predicted_ns) <= 0.005 * max(bias.measured_ns, 0):
            return what, ""
        return what, f"measure the host's part where the engine runs: {_PROFILE}"

    def _scatter(self, shares: Shares) -> Words:
        parts = [bias for bias in self.bias.gpu.values() if bias.steps and not np.isnan(bias.mape)]
        steps = sum(bias.steps for bias in parts)
        mape = sum(bias.mape * bias.steps for bias in parts) / steps if steps else 0.0
        what = (
            f"single steps are {mape:.1%} off their price; "
            f"{self.batches.share:.0%} of the steps you simulated have the engine's batch"
        )
        if not any(shares.values()):
            return what, ""
        fix = "what no average price can tell: finer shapes in the profile, and `--intervals` for its size"
        return what, fix

    def _stamps(self, shares: Shares) -> Words:
        return "what replaying the measured steps does not give back", ""

    def _client(self, shares: Shares) -> Words:
        late_ms = -shares["TTFT", "mean"] / 1e6
        if not self.own_client:
            if not any(shares.values()):
                return "no client measurement: the engine's own record is used", ""
            what = f"the prediction includes {-late_ms:.3f} ms of front end and network, not measured here"
            return what, "leave out --network-rtt-ms and front-end delays, or give the client's trace"
        what = (
            f"the client sees the first token {abs(late_ms):.3f} ms {'later' if late_ms > 0 else 'earlier'}"
        )
        what += " than engine, front end and network are predicted to deliver it"
        if abs(late_ms) < 0.001:
            return "the client sees what the engine emits", ""
        return what, f"change --network-rtt-ms by {late_ms:+.3f}, or have the front-end delays measured"


def _different(real: object, guess: object, known: Sequence[str] = ()) -> list[tuple[str, Any, Any]]:
    """The differing settings, except for some: name, the engine's value, the simulated one."""
    names = [field.name for field in fields(real) if field.name not in known]  # type: ignore[arg-type]
    both = [(name, getattr(real, name), getattr(guess, name)) for name in names]
    return [row for row in both if row[1] != row[2]]


def _longer(real: float, guess: float) -> str:
    if real == guess:
        return "no longer"
    return f"{abs(real / guess - 1):.1%} {'longer' if real > guess else 'shorter'}"


def _priced(bias: Bias) -> str:
    if not bias.measured_ns:
        return "without measured time"
    side = "low" if bias.error < 0 else "high"
    return f"priced {abs(bias.error):.1%} {side} in sum, {bias.mape:.1%} off each"


def _flag(name: str, value: object) -> str:
    """The notation of a setting on the command line."""
    of_kind = flag(name, value)
    if of_kind is not None:
        return of_kind
    if name == "enable_prefix_caching":
        return "--enable-prefix-caching" if value else "--no-enable-prefix-caching"
    if value is None:
        return f"(without --{name.replace('_', '-')})"
    return f"--{name.replace('_', '-')} {value}"
