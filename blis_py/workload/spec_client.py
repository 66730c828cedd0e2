"""Sources of requests in the YAML workload spec: clients, and cohorts of many of them.

What they send at which time of day is in `spec_lifecycle.py`, what their prompts share in `spec_sharing.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from blis_py.core.bounds import MOST_REQUESTS
from blis_py.workload.spec_base import DistributionSpec, Share, Strict, Text, TimeUs, Tokens, Whole, as_tuple
from blis_py.workload.spec_lifecycle import ArrivalSpec, DiurnalSpec, DrainSpec, LifecycleSpec, SpikeSpec
from blis_py.workload.spec_sharing import PrefixSpec, ReasoningSpec

MOST_MEMBERS = 100_000


class DiffusionSpec(Strict):
    """`kind: diffusion` and what belongs to it (`blis_py.workload.diffusion`), of a client or of all."""

    kind: Literal["autoregressive", "diffusion"] | None = None
    block_size: int | None = None
    steps: Any = None
    commit_rounds: int | None = None


class ClientSpec(DiffusionSpec):
    """One source of requests, or with `reasoning.multi_turn` of sessions.

    With `concurrency` (absent or 0: an open loop) no more of its requests are under way, and each, once
    answered, leaves its place to the next after `think_time_us`. With a rate (`rate_fraction`, `arrival`)
    those that are due wait for a place; without one the next is sent as soon as there is one.
    Times in us; `timeout` is patience from sending, 0: endless; absent: endless, or 300 s with several turns.
    """

    id: Text = ""
    tenant_id: Text = ""
    slo_class: str = ""
    model: str = ""
    rate_fraction: Share | None = None
    arrival: ArrivalSpec | None = None
    concurrency: Annotated[Whole, Field(le=MOST_REQUESTS)] = 0
    think_time_us: TimeUs = 0
    input_distribution: DistributionSpec
    output_distribution: DistributionSpec
    prefix_group: Text = ""
    prefix_length: Tokens = 0
    prefixes: Annotated[tuple[PrefixSpec, ...], BeforeValidator(as_tuple)] = ()
    reasoning: ReasoningSpec | None = None
    lifecycle: LifecycleSpec | None = None
    closed_loop: bool | None = None
    streaming: bool = False
    timeout: TimeUs | None = None
    slo_target_us: TimeUs | None = None


class CohortSpec(ClientSpec):
    """So many clients alike, `population`, who share the cohort's rate and are called `ID-0`, `ID-1`, ...

    With `prefix_sharing: per_member` each has a prefix group of its own. At most one of `diurnal`, `spike`,
    `drain` and `lifecycle` says when they send.
    """

    population: Annotated[Whole, Field(ge=1, le=MOST_MEMBERS)]
    prefix_sharing: Literal["", "shared", "per_member"] = ""
    diurnal: DiurnalSpec | None = None
    spike: SpikeSpec | None = None
    drain: DrainSpec | None = None
