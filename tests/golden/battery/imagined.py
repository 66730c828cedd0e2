"""Runs that are not simulated: a formula gives their figures, with what every search must cope with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from random import Random
from typing import Any

from blis_py.api import build
from blis_py.metrics.load import SATURATED, STABLE, TOO_SHORT
from blis_py.metrics.slo import parse_slos
from blis_py.planning.job import Job, JobOutcome
from blis_py.planning.worker import outcome_of

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "scheduling_delay_ms")


@cache
def _measured() -> JobOutcome:
    """A real outcome, whose figures are scaled."""
    settings: dict[str, Any] = {
        "model": "qwen3-14b",
        "gpu": "h100",
        "num_requests": 60,
        "output_tokens": 10,
        "rate": 30,
    }
    return outcome_of(build(**settings, goodput="ttft:30 tpot:15").run(progress=False))


class Imagined:
    """A runner of M/M/c-like outcomes.

    Args:
        rng: of the services' speed and of what goes wrong.
    """

    workers, done, reused = 1, 0, 0

    def __init__(self, rng: Random) -> None:
        self._per_s, self._seed = rng.choice((3.0, 15.0, 60.0)), rng.random()
        self._loses, self._fails = rng.random() < 0.2, rng.random() < 0.15
        self._noise = rng.choice((0.0, 0.0, 0.1))
        self._step_ms = rng.choice((0.0, 5.0, 20.0))
        """Coarseness of latencies, so that some just meet their limits."""

    def run(
        self, jobs: Sequence[Job], on_outcome: Callable[[int, JobOutcome, bool], None] | None = None
    ) -> list[JobOutcome]:
        found = [self._outcome(job) for job in jobs]
        self.done += len(jobs)
        for index, outcome in enumerate(found):
            if on_outcome is not None:
                on_outcome(index, outcome, False)
        return found

    def _draw(self, *parts: object) -> float:
        """From 0 to 1, of these parts alone."""
        digest = sha256(repr((self._seed, *parts)).encode()).digest()
        return int.from_bytes(digest[:6], "big") / 2**48

    def _outcome(self, job: Job) -> JobOutcome:
        config, how = job.config, job.variation
        gpu, tp, seqs = config.gpu, config.tp, config.scheduler.max_num_seqs or 256
        kind = (gpu, tp, config.scheduler.policy, config.scheduler.max_num_batched_tokens)
        if self._fails and self._draw("fails", kind) < 0.3:
            return JobOutcome(refused="does not fit")
        speed = self._per_s * tp**0.8 * (0.7 + self._draw(kind)) * min(1.0, seqs / 16)
        speed /= how.gpu_time**0.9 * how.host_time**0.1 * how.prompt**0.5 * how.output**0.4
        speed *= how.kv_blocks**0.1
        capacity = speed * config.instances
        requests = (config.workload.num_requests or 100) * how.length
        if config.workload.concurrency:
            offered, used = None, 0.9
            rate = capacity * 0.9
        else:
            rate = offered = (config.workload.rate or 1.0) * how.rate
            used = rate / capacity
        noise = 1 + self._noise * (self._draw("noise", kind, how, config.seed) - 0.5)
        factor = noise * self._per_s / speed / max(1 - used, 0.02) * (1 + 10 / requests)
        if "hopeless" in job.stops_at and factor > 30:
            return JobOutcome(early_stop="hopeless")
        if "fine" in job.stops_at and factor < 0.3:
            return JobOutcome(early_stop="fine")
        return self._scaled(job, factor, min(rate, capacity), used, offered, requests)

    def _scaled(
        self, job: Job, factor: float, rate: float, used: float, offered: float | None, requests: float
    ) -> JobOutcome:
        config, plain = job.config, _measured()
        figures = dict(plain.figures)
        for name in figures:
            if name.startswith(LATENCIES) and not name.endswith("count"):
                value = (figures[name] or 0.0) * factor
                figures[name] = round(value / self._step_ms) * self._step_ms if self._step_ms else value
        figures |= {"throughput.requests_per_s": rate, "throughput.output_tokens_per_s": rate * 10}
        figures |= {"throughput.total_tokens_per_s": rate * 500, "num_instances": config.instances}
        figures |= {"requests.injected": round(requests), "goodput.attainment": 1 / (1 + factor / 9)}
        figures |= {"requests.timed_out": round(requests * max(used - 0.9, 0) / 9) if self._loses else 0}
        slo = []
        for text, check in zip(config.slo, parse_slos(config.slo), strict=True):
            value = figures[f"{check.metric}_ms.{check.stat}"] or 0.0
            verdict = {"slo": text, "slo_class": None, "metric": check.metric, "stat": check.stat}
            verdict |= {"limit_ms": check.limit_ns / 1e6, "measured_ms": value}
            slo.append(verdict | {"met": value <= check.limit_ns / 1e6})
        verdict_of_load = SATURATED if used > 1 else TOO_SHORT if requests < 50 else STABLE
        tp = config.tp
        facts = {**plain.facts, "requests": round(requests), "gpu": config.gpu, "tp": tp}
        facts |= {
            "offered_per_s": offered,
            "span_s": requests / (offered or 1),
            "gpus": config.instances * tp,
        }
        return replace(plain, figures=figures, slo=slo, verdict=verdict_of_load, facts=facts)
