"""Where requests come from: a section of the configuration.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

from dataclasses import dataclass, field

from blis_py.config.layers import setting
from blis_py.core.bounds import LAST_NS, MOST_ARRIVALS_PER_S, MOST_REQUESTS, MOST_TOKENS, SECOND_NS

_LAST_S, _LAST_MS = LAST_NS / SECOND_NS, LAST_NS / 10**6


@dataclass(frozen=True, kw_only=True)
class WorkloadSection:
    """Where requests come from: a trace, a spec, a preset, or the lengths and rate given here."""

    trace: str | None = None
    """File whose requests are replayed: TraceV2, Azure, Mooncake, BurstGPT, ShareGPT, results of benchmarks,
    or any table by its `columns`; one that describes a workload is taken for a `spec`."""
    trace_header: str | None = None
    """Header YAML of a TraceV2 trace, where it does not lie beside the CSV under the same name."""
    trace_format: str | None = None
    """Format of the trace; null = its content decides."""
    columns: dict[str, str] = field(default_factory=dict)
    """Which column of a table plays which role: arrival, input, output, max_tokens, request_id, slo_class,
    tenant_id, client_id, model, prefix_group."""
    time_unit: str = setting("s", choices=("s", "ms", "us", "ns"))
    """Of numbers in the column of arrivals, where `columns` names one."""
    tokenizer: str | None = None
    """`tokenizer.json` that counts the tokens of traces of text."""
    time_scale: float = setting(1.0, above=0)
    """Arrival times of the trace are multiplied by it: 0.5 = twice the rate."""
    limit: int | None = setting(None, least=1, most=MOST_REQUESTS)
    """Only the first requests of the trace."""
    skip_bad_rows: bool = False
    """Leave rows of the trace that are no good out, and tell how many; otherwise the first is an error."""
    slo_shares: dict[str, float] = field(default_factory=dict)
    """SLO classes dealt out at random to the requests of the trace, by share."""
    spec: str | None = None
    """Workload spec: a YAML file, or the name of a bundled one."""
    preset: str | None = None
    """Name of a preset: lengths and rates as BLIS has them."""
    rate: float | None = setting(None, above=0, most=MOST_ARRIVALS_PER_S)
    """Requests per second; null = the spec's or the trace's own, else 1. A trace is stretched to it."""
    num_requests: int | None = setting(None, least=1, most=MOST_REQUESTS)
    """null = the spec's own or the whole trace, else 100; with a horizon, as many as arrive before it."""
    arrival: str = setting("poisson", choices=("poisson", "gamma", "weibull", "constant"))
    """How the gaps between requests are distributed."""
    cv: float | None = setting(None, above=0)
    """Burstiness of gamma and weibull arrivals: standard deviation of the gaps over their mean."""
    prompt_tokens: int = setting(512, least=1, most=MOST_TOKENS)
    """Length of a prompt in tokens, mean of a normal distribution."""
    prompt_tokens_stdev: int = setting(256, least=0, most=MOST_TOKENS)
    """Its standard deviation."""
    prompt_tokens_min: int = setting(2, least=1, most=MOST_TOKENS)
    """The shortest prompt."""
    prompt_tokens_max: int = setting(7000, least=1, most=MOST_TOKENS)
    """The longest prompt."""
    output_tokens: int = setting(512, least=1, most=MOST_TOKENS)
    """Length of an answer in tokens, mean of a normal distribution."""
    output_tokens_stdev: int = setting(256, least=0, most=MOST_TOKENS)
    """Its standard deviation."""
    output_tokens_min: int = setting(2, least=1, most=MOST_TOKENS)
    """The shortest answer."""
    output_tokens_max: int = setting(7000, least=1, most=MOST_TOKENS)
    """The longest answer."""
    eos_share: float = setting(0.0, least=0, most=1)
    """Share of the requests whose answer ends with an end of sequence, which no scheduler foresees; the
    others end at their length, which it knows. It matters with `async_scheduling`."""
    structured_output_ratio: float | None = setting(None, least=0, most=1)
    """Share of the requests whose answer a grammar constrains (vLLM's name); null = what the trace or spec
    says, else none. Its masks cost what the latency model says, or `latency.mask_row_us`."""
    concurrency: int | None = setting(None, least=1, most=MOST_REQUESTS)
    """Closed loop: requests under way at once, at most; the next is sent when one has ended. Without a rate,
    requests that are generated are sent as fast as that allows. null = an open loop: requests come when they
    come."""
    think_time_ms: float | None = setting(None, least=0, most=_LAST_MS)
    """In a closed loop, a client's pause between an answer and its next request; null = none, or as the trace
    says of its sessions."""
    think_time_dist: str | None = None
    """Law of the pauses in the sessions of a trace: `constant:value=800ms`, `exponential:mean=2s`,
    `lognormal:mu=1.1,sigma=0.8` (of the logarithm of seconds), the last two with `min` and `max`."""
    session_mode: str | None = setting(None, choices=("closed-loop", "fixed"))
    """When the turns of a trace's sessions come: a pause after the answer before them, or at their times in
    the trace; null = at their times, where they have any."""
    closed_loops: str = setting("client", choices=("client", "blis"))
    """When a client goes on: `client`, when it has the answer, behind the front end, and whatever became of
    it; the next turn repeats all of it. `blis`, as BLIS does it: when the last step has ended, and only
    if there is an answer; the next turn repeats all but its last token; the first requests of a `concurrency`
    are spread over a pause; sessions are not cut off at a number of requests."""
    prefix_tokens: int = setting(0, least=0, most=MOST_TOKENS)
    """Tokens in front of every prompt that all requests share."""
    timeout_s: float | None = setting(300.0, above=0, most=_LAST_S)
    """Patience of generated requests; null = endless. Traces and specs bring their own."""
    client_timeout_s: float | None = setting(None, above=0, most=_LAST_S)
    """Patience of the clients of a trace, whatever the trace says of it; null = as it says, else endless."""
