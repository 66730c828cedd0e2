"""Requests: a section of the configuration.

Annotations are evaluated here and no later, as in `blis_py.config.models`.
"""

from blis_py.core.bounds import LAST_NS, MAX_ARRIVALS_PER_S, MAX_REQUESTS, MAX_TOKENS, SECOND_NS
from blis_py.core.flag_texts import pairs, word
from blis_py.core.light_dataclass import dataclass
from blis_py.core.settings import setting
from blis_py.errors import InputError

_LAST_S, _LAST_MS = LAST_NS / SECOND_NS, LAST_NS / 10**6


def _negative_is_endless(name: str, value: float) -> float | None:
    """Seconds, None if negative.

    Raises:
        InputError: 0.
    """
    if value == 0:
        fix = "give seconds, or a negative value for endless patience"
        raise InputError("must not be 0", key=name, fix=fix)
    return None if value < 0 else value


@dataclass(frozen=True, kw_only=True)
class WorkloadSection:
    """The requests: a trace, a spec, a preset, or the lengths and rate given here."""

    trace: str | None = setting(
        None,
        flag="--trace",
        aliases=("--trace-data",),
        help="Trace: Azure, Mooncake, TraceV2, BurstGPT, ShareGPT, results of vLLM, SGLang, GuideLLM, ...",
        metavar="FILE",
        group="Trace",
    )
    """File whose requests are replayed: TraceV2, Azure, Mooncake, BurstGPT, ShareGPT, results of benchmarks,
    or any table by its `columns`; one that describes a workload is taken for a `spec`."""
    trace_header: str | None = setting(
        None, flag="--trace-header", help="Header of a TraceV2 trace.", metavar="FILE", group="Trace"
    )
    """Header YAML of a TraceV2 trace, where it does not lie beside the CSV under the same name."""
    trace_format: str | None = setting(
        None, flag="--trace-format", help="Format of the trace, by default as it looks.", group="Trace"
    )
    """Format of the trace; null = its content decides."""
    columns: dict[str, str] = setting(
        factory=dict,
        flag="--columns",
        read=pairs(
            "each role once with its column", "arrival=ts,input=prompt_len,output=answer_len", read=word
        ),
        help="Columns of any table: arrival=ts,input=prompt,output=gen.",
        group="Trace",
    )
    """Which column of a table plays which role: arrival, input, output, max_tokens, request_id, slo_class,
    tenant_id, client_id, model, prefix_group, session_id, turn. In JSON lines `a.b` is the
    key `b` of the object `a`."""
    time_unit: str | None = setting(
        None,
        choices=("s", "ms", "us", "ns"),
        flag="--time-unit",
        help="Of the trace's arrivals: s, ms, us, ns.",
        group="Trace",
    )
    """Unit of the trace's arrivals, where they are numbers; null = that of its format, s in `columns`."""
    hash_block_size: int | None = setting(
        None,
        least=1,
        most=MAX_TOKENS,
        flag="--hash-block-size",
        help="Tokens per hash id of the trace's prompts.",
        group="Trace",
    )
    """Tokens of a prompt that each of its `hash_ids` stands for; null = as in its format, 512 in Mooncake."""
    tokenizer: str | None = setting(
        None, flag="--trace-tokenizer", help="tokenizer.json, for texts.", metavar="FILE", group="Trace"
    )
    """`tokenizer.json` that counts the tokens of traces of text."""
    time_scale: float = setting(
        1.0, above=0, flag="--time-scale", help="Stretch arrival times; 0.5 = twice the rate.", group="Trace"
    )
    """Arrival times of the trace are multiplied by it: 0.5 = twice the rate."""
    limit: int | None = setting(
        None,
        least=1,
        most=MAX_REQUESTS,
        flag="--limit",
        help="Only the first requests of the trace.",
        group="Trace",
    )
    skip_bad_rows: bool = setting(
        False, flag="--skip-bad-rows", help="Leave bad rows of the trace out, and count.", group="Trace"
    )
    """Leave rows of the trace that are no good out, and tell how many; otherwise the first is an error."""
    as_recorded: bool = setting(
        False,
        flag="--as-recorded",
        help="Results of closed-loop benchmarks: at the recorded times.",
        group="Trace",
    )
    """Requests of a benchmark that kept some of them in flight come at their recorded times; otherwise the
    benchmark is repeated as the closed loop that it was."""
    slo_shares: dict[str, float] = setting(
        factory=dict,
        flag="--slo-shares",
        read=pairs("each class once with its share", "critical=0.2,standard=0.8"),
        help="Deal out classes: critical=0.2,standard=0.8.",
        group="Trace",
    )
    """SLO classes dealt out at random to the requests of the trace, by share."""
    spec: str | None = setting(None, flag="--workload-spec", help="Workload spec (YAML).", metavar="FILE")
    """Workload spec: a YAML file, or the name of a bundled one."""
    preset: str | None = None
    """Name of a preset: lengths and rates as BLIS has them."""
    rate: float | None = setting(
        None,
        above=0,
        most=MAX_ARRIVALS_PER_S,
        flag="--rate",
        help="Requests per second, default 1. A trace is stretched to it.",
    )
    """Requests per second; null = the spec's or the trace's own, else 1. A trace is stretched to it."""
    num_requests: int | None = setting(
        None,
        least=1,
        most=MAX_REQUESTS,
        flag="--num-requests",
        aliases=("--num-prompts",),
        help="Requests to generate (default 100) or to take from a trace.",
    )
    """null = the spec's own or the whole trace, else 100; with a horizon, as many as arrive before it."""
    arrival: str = setting(
        "poisson",
        choices=("poisson", "gamma", "weibull", "constant"),
        flag="--arrival",
        help="poisson, gamma, weibull, constant.",
    )
    """Distribution of the gaps between requests."""
    cv: float | None = setting(
        None, above=0, flag="--cv", help="Burstiness of gamma and weibull arrivals. Default 1."
    )
    """Burstiness of gamma and weibull arrivals: standard deviation of the gaps over their mean."""
    prompt_tokens: int = setting(512, least=1, most=MAX_TOKENS, flag="--prompt-tokens", help="Prompt length.")
    """Length of a prompt in tokens; the mean where lengths vary."""
    prompt_tokens_stdev: int = setting(
        256,
        least=0,
        most=MAX_TOKENS,
        flag="--prompt-tokens-stdev",
        help="Prompt length, standard deviation. Default 0 where a length is given.",
    )
    """Standard deviation of a normal distribution of the lengths; 0 = all alike, which is the default where a
    length is given, except under `engine: blis`."""
    prompt_tokens_min: int = setting(
        2, least=1, most=MAX_TOKENS, flag="--prompt-tokens-min", help="Prompt length, least."
    )
    """The shortest prompt, where lengths vary."""
    prompt_tokens_max: int = setting(
        7000, least=1, most=MAX_TOKENS, flag="--prompt-tokens-max", help="Prompt length, most."
    )
    """The longest prompt, where lengths vary."""
    output_tokens: int = setting(512, least=1, most=MAX_TOKENS, flag="--output-tokens", help="Output length.")
    """Length of an answer in tokens; the mean where lengths vary."""
    output_tokens_stdev: int = setting(
        256,
        least=0,
        most=MAX_TOKENS,
        flag="--output-tokens-stdev",
        help="Output length, standard deviation. Default 0 where a length is given.",
    )
    """Standard deviation of a normal distribution of the lengths; 0 = all alike, which is the default where a
    length is given, except under `engine: blis`."""
    output_tokens_min: int = setting(
        2, least=1, most=MAX_TOKENS, flag="--output-tokens-min", help="Output length, least."
    )
    """The shortest answer, where lengths vary."""
    output_tokens_max: int = setting(
        7000, least=1, most=MAX_TOKENS, flag="--output-tokens-max", help="Output length, most."
    )
    """The longest answer, where lengths vary."""
    length_law: str = setting(
        "normal",
        choices=("normal", "uniform"),
        flag="--length-law",
        help="normal, or uniform between the least and the most.",
    )
    """Law of the lengths of prompts and answers: `uniform` takes every length from `prompt_tokens_min` to
    `prompt_tokens_max` alike, and so for `output_tokens`."""
    eos_share: float = setting(
        0.0,
        least=0,
        most=1,
        flag="--eos-share",
        help="Share of answers that end unforeseen, with an end of sequence.",
    )
    """Share of the requests whose answer ends with an end of sequence, which no scheduler foresees; the
    others end at their length, which it foresees. It matters with `async_scheduling`."""
    structured_output_ratio: float | None = setting(
        None,
        least=0,
        most=1,
        flag="--structured-output-ratio",
        aliases=("--constrained-share",),
        help="Share of answers that a grammar constrains. Default: as the trace or spec says, else none.",
    )
    """Share of the requests whose answer a grammar constrains (vLLM's name); null = what the trace or spec
    says, else none. Its masks cost what the latency model says, or `latency.mask_row_us`."""
    concurrency: int | None = setting(
        None,
        least=1,
        most=MAX_REQUESTS,
        flag="--concurrency",
        help="Closed loop: most requests under way at once; as fast as that allows where no rate is given.",
        null=0,
    )
    """Closed loop: requests under way at once, at most; the next is sent when one has ended. Without a rate,
    requests that are generated are sent as fast as that allows. null = an open loop: requests come when they
    come."""
    think_time_ms: float | None = setting(
        None,
        least=0,
        most=_LAST_MS,
        flag="--think-time-ms",
        help="Closed loop: pause before the next request.",
        null=0,
    )
    """In a closed loop, a client's pause between an answer and its next request; null = none, or as the trace
    says of its sessions."""
    think_time_dist: str | None = setting(
        None, flag="--think-time-dist", help="Of closed-loop: constant:value=800ms, ...", group="Trace"
    )
    """Law of the pauses in the sessions of a trace: `constant:value=800ms`, `exponential:mean=2s`,
    `lognormal:mu=1.1,sigma=0.8` (of the logarithm of seconds), the last two with `min` and `max`."""
    session_mode: str | None = setting(
        None,
        choices=("closed-loop", "fixed"),
        flag="--session-mode",
        help="Turns: closed-loop (after answers) or fixed.",
        group="Trace",
    )
    """Times of the turns of a trace's sessions: a pause after the answer before them, or at their times in
    the trace; null = at their times, where they have any."""
    closed_loops: str = setting("client", choices=("client", "blis"))
    """Time at which a client goes on: `client`, when it has the answer, behind the front end, and whatever
    became of it; the next turn repeats all of it. `blis`, as BLIS does it: when the last step has ended, and
    only if there is an answer; the next turn repeats all but its last token; the first requests of a
    `concurrency` are spread over a pause; sessions are not cut off at a number of requests."""
    prefix_tokens: int = setting(
        0, least=0, most=MAX_TOKENS, flag="--prefix-tokens", help="Shared prefix before every prompt."
    )
    """Tokens in front of every prompt that all requests share."""
    timeout_s: float | None = setting(
        300.0,
        above=0,
        most=_LAST_S,
        flag="--timeout",
        read=_negative_is_endless,
        help="Patience of a client, s; negative = endless.",
    )
    """Patience of generated requests; null = endless. Traces and specs bring their own."""
    client_timeout_s: float | None = setting(
        None,
        above=0,
        most=_LAST_S,
        flag="--client-timeout",
        help="Patience of the trace's clients, s.",
        group="Trace",
    )
    """Patience of the clients of a trace, whatever the trace says of it; null = as it says, else endless."""
