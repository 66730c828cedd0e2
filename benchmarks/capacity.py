"""How many requests per second one instance can complete.

    python benchmarks/capacity.py OUTPUT_TOKENS

An instance whose queue never empties completes as fast as it can. With n and with 2n requests that are all
there from the start, filling up at the beginning and running dry at the end cost the same, so
n / (duration of 2n - duration of n) is the rate in between. n doubles until the rate has settled.
"""

from __future__ import annotations

import json
import sys

from setting import build, serve

_ALL_AT_ONCE = 1e6  # requests per second
_FIRST = 1024
_LAST = 16_384
_SETTLED = 0.01


def saturation_rate(output_tokens: int) -> float:
    """Requests per second of one instance with `PROMPT_TOKENS` in and `output_tokens` out."""
    count, shorter_s, rate = _FIRST, _duration_s(output_tokens, _FIRST), 0.0
    while count < _LAST:
        longer_s = _duration_s(output_tokens, 2 * count)
        previous, rate = rate, count / (longer_s - shorter_s)
        if abs(rate - previous) <= _SETTLED * rate:
            return rate
        count, shorter_s = 2 * count, longer_s
    raise RuntimeError(f"the completion rate with {output_tokens} output tokens does not settle")


def _duration_s(output_tokens: int, count: int) -> float:
    record = serve(build(output_tokens, _ALL_AT_ONCE, count))
    return float(record.last_token_ns.max()) / 1e9


if __name__ == "__main__":
    print(json.dumps({"requests_per_s": saturation_rate(int(sys.argv[1]))}))
