"""Sources of requests in the YAML workload spec: clients, and cohorts of many of them.

Their times of day are in `_spec_lifecycle.py`, what their prompts share in `_spec_sharing.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from blis_py.core.bounds import MAX_REQUESTS
from blis_py.workload._spec_lifecycle import ArrivalSpec, DiurnalSpec, DrainSpec, LifecycleSpec, SpikeSpec
from blis_py.workload._spec_sharing import MultimodalSpec, PrefixSpec, ReasoningSpec
from blis_py.workload.spec_base import DistributionSpec, Share, Strict, Text, TimeUs, Tokens, Whole, as_tuple
from blis_py.workload.spec_kinds import KindSpec

MAX_MEMBERS = 100_000


class NetworkSpec(Strict):
    """Network distance of clients: their latencies, and when their next requests reach the cluster."""

    rtt_ms: Annotated[float, Field(ge=0, le=3.6e6, allow_inf_nan=False)] = 0.0
    """Round trip between client and cluster."""
    bandwidth_mbps: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] = 0.0
    """Bandwidth of the client's line, Mbit/s both ways, 4 bytes for a token; 0: a token takes no time."""


class ClientSpec(KindSpec):
    """One source of requests, or with `reasoning.multi_turn` of sessions.

    With `concurrency` (absent or 0: an open loop) no more of its requests are under way, and each, once
    answered, leaves its place to the next after `think_time_us`. With a rate (`rate_fraction`, `arrival`)
    those that are due wait for a place; without one the next is sent as soon as there is one. A session keeps
    its place from its first turn to the end of its last.
    Times in us; `timeout` is patience from sending, 0: endless; absent: endless, or 300 s with several turns.
    """

    id: Text = ""
    """Name in results; absent: `client_N`."""
    tenant_id: Text = ""
    """Tenant that it belongs to."""
    slo_class: str = ""
    """Urgency: `critical`, `standard`, `batch`, `sheddable`, `background`, or a class that a policy
    defines; absent: as `standard`."""
    model: str = ""
    """Which model it asks for."""
    rate_fraction: Share | None = None
    """Share of `aggregate_rate`, in proportion to those of all who send at some time when it does."""
    arrival: ArrivalSpec | None = None
    """Spacing of its requests."""
    concurrency: Annotated[Whole, Field(le=MAX_REQUESTS)] = 0
    """A closed loop: so many requests, or sessions, under way at most; 0: an open loop."""
    think_time_us: TimeUs = 0
    """In a closed loop, the pause between an answer and the next request; between the turns of a session
    unless `multi_turn` has pauses of its own."""
    input_distribution: DistributionSpec
    """Prompt tokens, beside prefixes."""
    output_distribution: DistributionSpec
    """Output tokens."""
    multimodal: MultimodalSpec | None = None
    """Composition of prompts, instead of `input_distribution`."""
    prefix_group: Text = ""
    """All prompts of a group begin with the same tokens."""
    prefix_length: Tokens = 0
    """Number of those tokens; 50 where no client of the group says it."""
    prefixes: Annotated[tuple[PrefixSpec, ...], BeforeValidator(as_tuple)] = ()
    """Nested texts in front of prompts, the outermost first; instead of a prefix group."""
    reasoning: ReasoningSpec | None = None
    """Sessions of several turns."""
    network: NetworkSpec | None = None
    """Distance from the cluster; absent: none."""
    lifecycle: LifecycleSpec | None = None
    """Times at which it sends; absent: all."""
    closed_loop: bool | None = None
    """Whether the turns of a session wait for the answer before them; absent: they do."""
    streaming: bool = False
    """Noted in traces; without effect on times."""
    timeout: TimeUs | None = None
    """Patience in us from sending; 0: endless; absent: endless, or 300 s with several turns."""
    slo_target_us: TimeUs | None = None
    """The latency it aims at, noted in traces."""
    structured_output_ratio: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of its answers that a grammar constrains."""


class CohortSpec(ClientSpec):
    """`population` identical clients, who share the cohort's rate and are called `ID-0`, `ID-1`, ...

    With `prefix_sharing: per_member` each has a prefix group of its own. At most one of `diurnal`, `spike`,
    `drain` and `lifecycle` says when they send.
    """

    population: Annotated[Whole, Field(ge=1, le=MAX_MEMBERS)]
    """Number of members."""
    prefix_sharing: Literal["", "shared", "per_member"] = ""
    """`per_member`: prefix groups `GROUP-0`, `GROUP-1`, ...; otherwise they share one."""
    diurnal: DiurnalSpec | None = None
    """The rate rises and falls with the hours of a day."""
    spike: SpikeSpec | None = None
    """They send during it only."""
    drain: DrainSpec | None = None
    """They send less and less."""
