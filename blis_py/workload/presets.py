"""Workloads without a file: the named presets, and one client made from flags."""

from __future__ import annotations

from typing import NamedTuple

from blis_py.core.bounds import MAX_REQUESTS, MAX_TOKENS, SECOND_NS, check_count, clock_ns
from blis_py.errors import InputError
from blis_py.requests.table import RequestTable
from blis_py.workload import arrivals
from blis_py.workload.arrivals import Arrivals
from blis_py.workload.client import Client
from blis_py.workload.generate import DEFAULT_SEED, merge
from blis_py.workload.lengths import Lengths
from blis_py.workload.truncated import clamped_mean, truncated_law

DEFAULT_LEAST, DEFAULT_MOST = 2, 7000
"""Tokens of the shortest and the longest prompt and answer, where lengths vary."""


class Sizes(NamedTuple):
    """Normally distributed token counts: mean, standard deviation and the range they are clamped to."""

    tokens: int
    stdev: int
    min: int
    max: int

    def effective(self) -> Sizes:
        """The sizes without the default bounds where nothing varies: those are of a distribution."""
        if self.stdev:
            return self
        least = 1 if self.min == DEFAULT_LEAST else self.min
        return self._replace(min=least, max=MAX_TOKENS if self.max == DEFAULT_MOST else self.max)

    @property
    def clamped_mean(self) -> float:
        """The mean after clamping."""
        return clamped_mean(self.tokens, self.stdev, self.min, self.max)

    @property
    def moved(self) -> bool:
        """Whether clamping changes the mean."""
        return abs(self.clamped_mean - self.tokens) > _UNMOVED * self.tokens


PRESETS: dict[str, tuple[Sizes, Sizes]] = {
    "chatbot": (Sizes(256, 100, 2, 800), Sizes(256, 100, 1, 1024)),
    "contentgen": (Sizes(1024, 150, 10, 2048), Sizes(1024, 200, 10, 2048)),
    "summarization": (Sizes(4096, 500, 100, 8192), Sizes(512, 150, 10, 2048)),
    "multidoc": (Sizes(10240, 1200, 500, 20480), Sizes(1536, 300, 50, 4096)),
}
"""Name -> (prompt, output), with BLIS's sizes."""
AS_BLIS = "distribution"
"""BLIS's name for the workload of the flags, with BLIS's length distribution."""
_UNMOVED = 0.005
"""Largest relative change of the mean by clamping that is ignored."""


def preset(
    name: str,
    *,
    rate: float,
    num_requests: int | None = 100,
    horizon_ns: int | None = None,
    arrival: str = "poisson",
    cv: float | None = None,
    seed: int = DEFAULT_SEED,
    timeout_s: float | None = 300.0,
) -> RequestTable:
    """The requests of a named preset at `rate` requests per second.

    Raises:
        InputError: unknown name, or an option `synthesise` refuses.
    """
    if name not in PRESETS:
        raise InputError(
            "unknown preset", key="--workload", value=name, fix=f"use one of {', '.join(PRESETS)}"
        )
    prompt, output = PRESETS[name]
    return synthesise(
        rate=rate,
        num_requests=num_requests,
        horizon_ns=horizon_ns,
        prompt_tokens=prompt.tokens,
        prompt_tokens_stdev=prompt.stdev,
        prompt_tokens_min=prompt.min,
        prompt_tokens_max=prompt.max,
        output_tokens=output.tokens,
        output_tokens_stdev=output.stdev,
        output_tokens_min=output.min,
        output_tokens_max=output.max,
        arrival=arrival,
        cv=cv,
        seed=seed,
        timeout_s=timeout_s,
        client=name,
        keep_mean=False,
    )


def synthesise(
    *,
    rate: float = 1.0,
    num_requests: int | None = 100,
    horizon_ns: int | None = None,
    prompt_tokens: int = 512,
    prompt_tokens_stdev: int = 256,
    prompt_tokens_min: int = DEFAULT_LEAST,
    prompt_tokens_max: int = DEFAULT_MOST,
    output_tokens: int = 512,
    output_tokens_stdev: int = 256,
    output_tokens_min: int = DEFAULT_LEAST,
    output_tokens_max: int = DEFAULT_MOST,
    prefix_tokens: int = 0,
    arrival: str = "poisson",
    cv: float | None = None,
    seed: int = DEFAULT_SEED,
    timeout_s: float | None = 300.0,
    client: str = "distribution",
    keep_mean: bool = True,
    uniform: bool = False,
) -> RequestTable:
    """One client with lengths that are all alike or normally distributed: the workload of the flags.

    Lengths have the requested mean: if clamping a normal distribution to the bounds would move it by more
    than half a percent, they follow a truncated normal distribution with this mean (`truncated.py`).

    Args:
        rate: requests per second.
        num_requests, horizon_ns: end of the workload, whichever comes first; `None` for no bound.
        prefix_tokens: tokens all prompts share, in front of `prompt_tokens`.
        arrival: a process of `blis_py.workload.arrivals.PROCESSES`; `constant` spaces evenly.
        cv: burstiness of gamma and weibull arrivals.
        timeout_s: patience of the client; `None` or negative: endless.
        client: name of the client, part of its random streams.
        keep_mean: False = always clamp, as BLIS does.
        uniform: lengths uniform between their bounds instead.

    Raises:
        InputError: naming the flag.
    """
    arrivals.check_rate(rate, key="--rate")
    check_count(prefix_tokens, least=0, most=MAX_TOKENS, key="--prefix-tokens")
    if num_requests is not None:
        check_count(num_requests, least=1, most=MAX_REQUESTS, key="--num-requests")
    timeout_ns = None
    if timeout_s is not None and not timeout_s < 0:
        fix = "a negative value disables it"
        timeout_ns = clock_ns(timeout_s, SECOND_NS, key="--timeout", least_ns=1, fix=fix)
    arrivals.check(arrival, cv, None, None, key="--arrival", flag="--cv")
    prompt = Sizes(prompt_tokens, prompt_tokens_stdev, prompt_tokens_min, prompt_tokens_max)
    output = Sizes(output_tokens, output_tokens_stdev, output_tokens_min, output_tokens_max)
    source = Client(
        name=client,
        arrivals=Arrivals(arrival, rate, cv=1.0 if cv is None else cv),
        input=_lengths(prompt, "--prompt-tokens", keep_mean, uniform),
        output=_lengths(output, "--output-tokens", keep_mean, uniform),
        prefix_group="shared" if prefix_tokens else "",
        prefix_tokens=prefix_tokens,
        timeout_ns=timeout_ns,
    )
    return merge([source], seed=seed, num_requests=num_requests, horizon_ns=horizon_ns, rate_key="--rate")


def _lengths(sizes: Sizes, flag: str, keep_mean: bool, uniform: bool) -> Lengths:
    check_count(sizes.stdev, least=0, most=MAX_TOKENS, key=f"{flag}-stdev")
    check_count(sizes.min, least=1, most=MAX_TOKENS, key=f"{flag}-min")
    check_count(sizes.max, least=1, most=MAX_TOKENS, key=f"{flag}-max")
    if sizes.min > sizes.max:
        raise InputError(f"is above {flag}-max ({sizes.max})", key=f"{flag}-min", value=sizes.min)
    if uniform:
        return Lengths("uniform", {"min": sizes.min, "max": sizes.max})
    bounds = sizes.effective()
    if not bounds.min <= sizes.tokens <= bounds.max:
        raise InputError(
            f"lies outside [{sizes.min}, {sizes.max}]",
            key=flag,
            value=sizes.tokens,
            fix=f"change it, {flag}-min or {flag}-max",
        )
    params = {"mean": sizes.tokens, "std_dev": sizes.stdev, "min": bounds.min, "max": bounds.max}
    return Lengths("truncated" if keep_mean and bounds.moved else "gaussian", params)


def note_of(sizes: Sizes, what: str, keep_mean: bool) -> str | None:
    """A note on lengths that differ from the requested ones."""
    between = f"between {sizes.min:,} and {sizes.max:,}"
    if not sizes.effective().moved:
        return None
    if not keep_mean:
        became = f"{sizes.clamped_mean:,.0f} tokens, not {sizes.tokens:,}"
        return f"{what} lengths: clamped to what lies {between}, as in BLIS, their mean becomes {became}"
    stdev = truncated_law(sizes.tokens, sizes.stdev, sizes.min, sizes.max).stdev
    if stdev >= (1 - _UNMOVED) * sizes.stdev:
        return None
    kept = f"{what} lengths: the mean of {sizes.tokens:,} tokens is kept"
    became = f"{stdev:,.0f}, the largest of a truncated normal law, not {sizes.stdev:,}"
    return f"{kept}; {between} their standard deviation is {became}"
