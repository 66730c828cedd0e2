"""`/metrics` under vLLM's names, labels and buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from blis_py.serve.backend import Backend, EngineLoad, Timing

TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 640.0, 2560.0),
)
ITL_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0),
    80.0,
)
LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("Time to first token.", TTFT_S),
    "inter_token_latency_seconds": ("Inter-token latency.", ITL_S),
    "request_time_per_output_token_seconds": ("Mean time per output token of a request.", ITL_S),
    "e2e_request_latency_seconds": ("End-to-end latency.", LATENCY_S),
    "request_queue_time_seconds": ("Time in the waiting queue.", LATENCY_S),
    "request_inference_time_seconds": ("Time since it was scheduled.", LATENCY_S),
    "request_prefill_time_seconds": ("From scheduling to the first token.", LATENCY_S),
    "request_decode_time_seconds": ("From the first to the last token.", LATENCY_S),
}
_REASONS = ("stop", "length", "abort", "error")


def lengths(max_model_len: int) -> tuple[int, ...]:
    """vLLM's buckets of token counts: 1, 2, 5, 10, … up to the context length."""
    bounds = []
    decade = 1
    while decade <= max_model_len:
        bounds += [decade * m for m in (1, 2, 5) if decade * m <= max_model_len]
        decade *= 10
    return tuple(bounds)


class PlainHistogram:
    """A histogram that costs a tenth of prometheus-client's to observe; one thread writes each."""

    __slots__ = ("bounds", "counts", "text", "total")

    def __init__(self, text: str, bounds: Sequence[float]) -> None:
        self.text, self.bounds = text, bounds
        self.counts, self.total = [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Observations up to each bound."""
        count = 0
        for bound, own in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += own
            yield floatToGoString(bound), count  # type: ignore[no-untyped-call]


class ServeMetrics:
    """Metrics of one served backend."""

    def __init__(self, backend: Backend) -> None:
        self.registry = CollectorRegistry()
        self._backend = backend
        sizes = lengths(backend.max_model_len)
        self.of = {name: PlainHistogram(*given) for name, given in _HISTOGRAMS.items()}
        """Histograms by name without the prefix."""
        self.of |= {
            "request_prompt_tokens": PlainHistogram("Prompt tokens of a request.", sizes),
            "request_generation_tokens": PlainHistogram("Output tokens of a request.", sizes),
            "iteration_tokens_total": PlainHistogram("Tokens of a step.", STEP_TOKENS),
        }
        self.prompt_tokens = self.generation_tokens = 0
        self.ends = dict.fromkeys(_REASONS, 0)
        self.registry.register(_State(backend, self))
        backend.step_tokens(self.of["iteration_tokens_total"].observe)

    def begin(self, prompt_tokens: int) -> SequenceMetrics:
        """A sequence that has arrived."""
        return SequenceMetrics(self, prompt_tokens, self._backend.now_s())

    def text(self) -> bytes:
        return generate_latest(self.registry)


class SequenceMetrics:
    """The metrics of one sequence."""

    __slots__ = ("_arrived_s", "_count", "_first_s", "_gaps", "_latest_s", "_prompt_tokens", "_to")

    def __init__(self, to: ServeMetrics, prompt_tokens: int, now_s: float) -> None:
        self._to, self._prompt_tokens, self._arrived_s = to, prompt_tokens, now_s
        self._gaps = to.of["inter_token_latency_seconds"]
        self._first_s = self._latest_s = -1.0
        self._count = 0

    def tokens(self, count: int, now_s: float) -> None:
        """Count a token, or a block of them."""
        if self._count:
            self._gaps.observe(now_s - self._latest_s)
        else:
            self._first_s = now_s
            self._to.of["time_to_first_token_seconds"].observe(now_s - self._arrived_s)
        self._count += count
        self._latest_s = now_s
        self._to.generation_tokens += count

    def ended(self, reason: str, timing: Timing | None, now_s: float) -> None:
        """The sequence is over."""
        to, of = self._to, self._to.of
        to.ends[reason if reason in to.ends else "error"] += 1
        to.prompt_tokens += self._prompt_tokens
        of["request_prompt_tokens"].observe(self._prompt_tokens)
        of["request_generation_tokens"].observe(self._count)
        of["e2e_request_latency_seconds"].observe(now_s - self._arrived_s)
        if self._count > 1:
            per_token_s = (self._latest_s - self._first_s) / (self._count - 1)
            of["request_time_per_output_token_seconds"].observe(per_token_s)
            of["request_decode_time_seconds"].observe(self._latest_s - self._first_s)
        if timing is not None and timing.scheduled_s >= 0 and self._count:
            of["request_queue_time_seconds"].observe(max(timing.scheduled_s - self._arrived_s, 0.0))
            of["request_prefill_time_seconds"].observe(max(self._first_s - timing.scheduled_s, 0.0))
            of["request_inference_time_seconds"].observe(max(self._latest_s - timing.scheduled_s, 0.0))


class _State(Collector):
    """Gauges of the backend, read at each scrape."""

    def __init__(self, backend: Backend, metrics: ServeMetrics) -> None:
        self._backend, self._metrics = backend, metrics

    def describe(self) -> list[Any]:
        return []

    def collect(self) -> Iterator[Any]:
        engines, model = self._backend.load(), self._backend.models[0]
        for name, text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=("model_name", "engine"))
            for load in engines:
                if not load.is_gone:
                    gauge.add_metric((model, str(load.index)), value(load))
            yield gauge
        for name, text, value in _COUNTERS:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=("model_name", "engine"))
            for load in engines:
                counter.add_metric((model, str(load.index)), value(load))
            yield counter
        yield from self._of_requests(model)
        yield from self._cache_config(engines)
        for name, read in self._backend.gauges.items():
            yield GaugeMetricFamily(name, name.replace("_", " "), value=read())

    def _of_requests(self, model: str) -> Iterator[Any]:
        own, labels, values = self._metrics, ("model_name", "engine"), (model, "0")
        for name, tally in own.of.items():
            histogram = HistogramMetricFamily(f"vllm:{name}", tally.text, labels=labels)
            histogram.add_metric(values, list(tally.cumulative()), tally.total)
            yield histogram
        for kind, text, count in (
            ("prompt", "Prompt tokens.", own.prompt_tokens),
            ("generation", "Output tokens.", own.generation_tokens),
        ):
            counter = CounterMetricFamily(f"vllm:{kind}_tokens", text, labels=labels)
            counter.add_metric(values, count)
            yield counter
        ends = CounterMetricFamily(
            "vllm:request_success", "Ended requests.", labels=(*labels, "finished_reason")
        )
        for reason, count in own.ends.items():
            ends.add_metric((*values, reason), count)
        yield ends

    def _cache_config(self, engines: Any) -> Iterator[GaugeMetricFamily]:
        if engines:
            names = tuple(engines[0].cache_config)
            info = GaugeMetricFamily("vllm:cache_config_info", "KV cache.", labels=("engine", *names))
            for load in engines:
                if not load.is_gone:
                    info.add_metric((str(load.index), *load.cache_config.values()), 1)
            yield info


_GAUGES: tuple[tuple[str, str, Callable[[EngineLoad], float]], ...] = (
    ("num_requests_running", "Requests in the running batch.", lambda load: load.running),
    ("num_requests_waiting", "Requests waiting to be scheduled.", lambda load: load.waiting),
    ("kv_cache_usage_perc", "Share of KV blocks in use, 0 to 1.", lambda load: load.kv_usage),
)
_COUNTERS: tuple[tuple[str, str, Callable[[EngineLoad], float]], ...] = (
    ("prefix_cache_queries", "Prompt tokens looked up.", lambda load: load.prefix_queried_tokens),
    ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda load: load.prefix_hit_tokens),
    ("num_preemptions", "Preemptions.", lambda load: load.preemptions),
)
