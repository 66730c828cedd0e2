"""Workloads that need no file: the named presets, and one client made from flags."""

from __future__ import annotations

import math
from dataclasses import dataclass

from blis_py.errors import InputError
from blis_py.workload import arrivals
from blis_py.workload.arrivals import Arrivals
from blis_py.workload.generate import DEFAULT_SEED, Client, merge
from blis_py.workload.lengths import Lengths
from blis_py.workload.table import RequestTable


@dataclass(frozen=True, slots=True)
class Sizes:
    """Normally distributed token counts: mean, standard deviation and the range they are clamped to."""

    tokens: int
    stdev: int
    min: int
    max: int


PRESETS: dict[str, tuple[Sizes, Sizes]] = {
    "chatbot": (Sizes(256, 100, 2, 800), Sizes(256, 100, 1, 1024)),
    "contentgen": (Sizes(1024, 150, 10, 2048), Sizes(1024, 200, 10, 2048)),
    "summarization": (Sizes(4096, 500, 100, 8192), Sizes(512, 150, 10, 2048)),
    "multidoc": (Sizes(10240, 1200, 500, 20480), Sizes(1536, 300, 50, 4096)),
}
"""Name -> (prompt, output), with the sizes BLIS gives these names."""


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
    )


def synthesise(
    *,
    rate: float = 1.0,
    num_requests: int | None = 100,
    horizon_ns: int | None = None,
    prompt_tokens: int = 512,
    prompt_tokens_stdev: int = 256,
    prompt_tokens_min: int = 2,
    prompt_tokens_max: int = 7000,
    output_tokens: int = 512,
    output_tokens_stdev: int = 256,
    output_tokens_min: int = 2,
    output_tokens_max: int = 7000,
    prefix_tokens: int = 0,
    arrival: str = "poisson",
    cv: float | None = None,
    seed: int = DEFAULT_SEED,
    timeout_s: float | None = 300.0,
    client: str = "distribution",
) -> RequestTable:
    """One client with normally distributed lengths: the workload of the flags of the same names.

    Args:
        rate: requests per second.
        num_requests, horizon_ns: where it ends, whichever comes first; `None` for no bound.
        prefix_tokens: tokens all prompts share, in front of `prompt_tokens`.
        arrival: a process of `blis_py.workload.arrivals.PROCESSES`; `constant` spaces evenly.
        cv: burstiness of gamma and weibull arrivals.
        timeout_s: patience of the client; `None` or negative: endless.
        client: name of the client, part of its random streams.

    Raises:
        InputError: naming the flag.
    """
    if not (math.isfinite(rate) and rate > 0):
        raise InputError("must be positive", key="--rate", value=rate, fix="give requests per second")
    if prefix_tokens < 0:
        raise InputError("must not be negative", key="--prefix-tokens", value=prefix_tokens)
    if num_requests is not None and num_requests < 1:
        raise InputError("must be at least 1", key="--num-requests", value=num_requests)
    if timeout_s is not None and (timeout_s == 0 or not math.isfinite(timeout_s)):
        raise InputError(
            "must be finite and not 0", key="--timeout", value=timeout_s, fix="a negative value disables it"
        )
    arrivals.check(arrival, cv, None, None, key="--arrival", flag="--cv")
    prompt = Sizes(prompt_tokens, prompt_tokens_stdev, prompt_tokens_min, prompt_tokens_max)
    output = Sizes(output_tokens, output_tokens_stdev, output_tokens_min, output_tokens_max)
    source = Client(
        name=client,
        arrivals=Arrivals(arrival, rate, cv=1.0 if cv is None else cv),
        input=_lengths(prompt, "--prompt-tokens"),
        output=_lengths(output, "--output-tokens"),
        prefix_group="shared" if prefix_tokens else "",
        prefix_tokens=prefix_tokens,
        timeout_ns=None if timeout_s is None or timeout_s < 0 else round(timeout_s * 1e9),
    )
    return merge([source], seed=seed, num_requests=num_requests, horizon_ns=horizon_ns)


def _lengths(sizes: Sizes, flag: str) -> Lengths:
    if sizes.stdev < 0:
        raise InputError("must not be negative", key=f"{flag}-stdev", value=sizes.stdev)
    if sizes.min < 1:
        raise InputError("must be at least 1", key=f"{flag}-min", value=sizes.min)
    if sizes.min > sizes.max:
        raise InputError(f"is above {flag}-max ({sizes.max})", key=f"{flag}-min", value=sizes.min)
    if not sizes.min <= sizes.tokens <= sizes.max:
        raise InputError(
            f"lies outside [{sizes.min}, {sizes.max}]",
            key=flag,
            value=sizes.tokens,
            fix=f"change it, {flag}-min or {flag}-max",
        )
    params = {"mean": sizes.tokens, "std_dev": sizes.stdev, "min": sizes.min, "max": sizes.max}
    return Lengths("gaussian", params)
