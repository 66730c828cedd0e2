"""A scheduler with blocks of 4 tokens, and short calls for its operations."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from blis_py.core.config import SchedulerConfig
from blis_py.core.kv import KeySpace
from blis_py.core.request import Request
from blis_py.core.scheduler import Scheduler
from blis_py.core.step import Step

Runs = list[tuple[str, int]]


class Machine:
    """Every step is checked, if not too many blocks make that slow."""

    def __init__(self, blocks: int, cache: str = "radix", **settings: Any) -> None:
        self._checked = blocks <= 100
        settings = {"max_model_len": 100_000, "block_size": 4, **settings}
        config = SchedulerConfig(num_kv_blocks=blocks, prefix_cache=cache, **settings)
        self.scheduler = Scheduler(config)
        self.keys = KeySpace(config.block_size)
        self.steps: list[Step] = []
        self.order: list[str] = []
        """Who was admitted, in order."""

    @property
    def free(self) -> int:
        return self.scheduler.kv.pool.num_free

    @property
    def hits(self) -> int:
        """Tokens found in the cache at first admissions."""
        return self.scheduler.counters.prefix_hit_tokens

    def add(
        self, name: str, runs: Runs, prompt: int = 0, output: int = 1, arrival_ns: int = 0,
        extra_key: Hashable = None,
    ) -> Request:  # fmt: skip
        """A request whose tokens are the runs; by default the prompt is all of them."""
        prompt = prompt or sum(tokens for _, tokens in runs)
        keys = self.keys.keys(runs)
        request = Request(
            name, arrival_ns, prompt, output, output, block_keys=keys, extra_key=extra_key
        )  # fmt: skip
        assert self.scheduler.add(request) is None
        return request

    def step(self, now_ns: int = 0) -> Step:
        step = self.scheduler.schedule(now_ns)
        assert step is not None
        self.scheduler.finish(step)
        if self._checked:
            self.scheduler.check()
            self.check_matches()
        self.steps.append(step)
        self.order += [request.id for request in step.admitted]
        return step

    def check_matches(self) -> None:
        """What the cache remembers about waiting requests is what it would find now."""
        kv = self.scheduler.kv
        for request in self.scheduler.waiting:
            remembered = kv.match(request)
            request.match = None
            assert kv.match(request) == remembered == len(kv.cached_blocks(request))

    def drain(self, now_ns: int = 0) -> None:
        while self.scheduler.waiting or self.scheduler.running:
            self.step(now_ns)
        self.scheduler.check()

    def serve(self, name: str, runs: Runs, prompt: int = 0, output: int = 1, **more: Any) -> Request:
        """One request, to its end."""
        request = self.add(name, runs, prompt, output, **more)
        self.drain()
        return request
