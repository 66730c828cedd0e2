"""vLLM's own scheduler, from its unpacked wheel, on scenarios; run by `child.py` in a bare interpreter.

    python -I -S vllm_child.py ROOT MAX_BYTES

The scheduler, the KV cache manager and the requests are vLLM's; models, workers and the engine's loop are
stood in, see `vllm_drive.py`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from hashlib import blake2b
from math import lcm
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.engines import child_loop, config_defaults, stand_ins
from benchmarks.engines.scenario import (
    EOS_TOKEN,
    RequestSpec,
    Scenario,
    StepTrace,
    answer_limit,
    token_ids,
    valid_drafts,
)
from benchmarks.engines.vllm_config import Section, vllm_config
from benchmarks.engines.vllm_drive import Drive

_SCHED = "vllm.v1.core.sched"
REAL = (
    "vllm.v1.core",
    "vllm.v1.request",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.metrics.stats",
    "vllm.v1.metrics.cache_hit_source",
    "vllm.utils.math_utils",
    "vllm.utils.hashing",
)
"""Modules of vLLM that run as they are."""
ABSENT = frozenset(
    (
        *(
            "torch",
            "transformers",
            "zmq",
            "pydantic",
            "huggingface_hub",
            "cbor2",
            "blake3",
            "xxhash",
            "psutil",
        ),
        *("regex", "cachetools", "numba", "PIL", "prometheus_client", "triton", "msgspec", "numpy"),
        *("cloudpickle", "typing_extensions"),
    )
)
"""Third-party modules they import."""


class FinishReason(IntEnum):
    """Stands for vLLM's enumeration of the same name."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


class StructuredOutputRequest:
    """Stands for vLLM's class of the same name: a grammar that is compiled when the request arrives.

    Args:
        valid_drafts: drafts that it allows behind an output token, by the number of that token and of drafts.
    """

    def __init__(self, valid_drafts: Callable[[int, int], int]) -> None:
        self.valid_drafts = valid_drafts
        self.grammar: Any = self
        self.request: Any = None

    @staticmethod
    def from_sampling_params(params: Any) -> StructuredOutputRequest | None:
        """The grammar of a request, if it has one."""
        return None if params.valid_drafts is None else StructuredOutputRequest(params.valid_drafts)

    def accept_tokens(self, name: str, tokens: list[int]) -> bool:
        """Whether it allows tokens that were sampled under its mask."""
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Those drafts, from the first on, that it allows."""
        return tokens[: self.valid_drafts(len(self.request._output_token_ids), len(tokens))]


class Grammars:
    """Stands for vLLM's `StructuredOutputManager`."""

    def grammar_init(self, request: Any) -> None:
        """Nothing: grammars are compiled."""

    def grammar_bitmask(self, *details: Any) -> None:
        """Nothing: what is sampled does not depend on it."""

    def should_advance(self, request: Any, **details: Any) -> bool:
        """Whether a grammar constrains the output of a request."""
        return request.structured_output_request is not None

    def accept_tokens(self, request: Any, tokens: list[int]) -> bool:
        """Whether a request's grammar allows tokens that were sampled under its mask."""
        return True

    def trim_reasoning_for_advance(self, request: Any, tokens: list[int]) -> list[int]:
        """The tokens behind a model's reasoning: all of them."""
        return tokens

    def validate_tokens(self, request: Any, tokens: list[int]) -> list[int]:
        """Those drafts, from the first on, that a request's grammar allows."""
        grammar = request.structured_output_request
        return tokens if grammar is None else grammar.validate_tokens(tokens)


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


PARTS: dict[str, dict[str, Any]] = {
    "vllm.v1.structured_output.request": {"StructuredOutputRequest": StructuredOutputRequest},
    "vllm.v1.structured_output": {"StructuredOutputGrammar": StructuredOutputRequest},
    "vllm.utils": {
        "length_from_prompt_token_ids_or_embeds": lambda ids, embeds: len(ids),
        "cdiv": _ceil_div,
        "GiB_bytes": 1 << 30,
    },
    "vllm.envs": {"VLLM_PREFIX_CACHE_RETENTION_INTERVAL": None, "VLLM_XPU_PP_MICROBATCH": True},
    "vllm.v1.utils": {"ConstantList": lambda items: items},
    "vllm.v1.engine": {
        "EngineCoreEventType": SimpleNamespace(QUEUED=1, SCHEDULED=2, PREEMPTED=3),
        "FinishReason": FinishReason,
    },
}
"""Values that a decision depends on."""


class Vllm:
    """Schedulers of one release.

    Args:
        root: folder with its package.
    """

    def __init__(self, root: Path) -> None:
        stand_ins.install(str(root), "vllm", REAL, ABSENT, PARTS)
        self._kv = importlib.import_module("vllm.v1.kv_cache_interface")
        self._request = importlib.import_module("vllm.v1.request").Request
        status = importlib.import_module("vllm.v1.request").RequestStatus
        self.preempted, self.aborted = status.PREEMPTED, status.FINISHED_ABORTED
        self._plain = importlib.import_module(f"{_SCHED}.scheduler").Scheduler
        config = root / "vllm" / "config"
        self.defaults = config_defaults.of_path(config if config.exists() else config.with_suffix(".py"))

    def drive(self, scenario: Scenario) -> list[StepTrace]:
        """Steps of a scenario, as `scenario.StepTrace`."""
        return Drive(self, scenario).steps()

    def scheduler(self, scenario: Scenario) -> Any:
        """A scheduler under a scenario's settings."""
        groups = [
            self._kv.KVCacheGroupSpec([f"layer {number}"], self._spec(scenario, *group))
            for number, group in enumerate(scenario["settings"].get("kv_groups", [("full", 0)]))
        ]
        blocks = scenario["num_kv_blocks"] + 1  # one is the null block
        cache = self._kv.KVCacheConfig(
            **_known(
                self._kv.KVCacheConfig,
                num_blocks=blocks,
                kv_cache_tensors=[],
                tensors={},
                kv_cache_groups=groups,
                prefix_cache_retention_interval=self._retention(groups),
            )
        )
        kind = self._plain
        if scenario["async_scheduling"]:
            kind = importlib.import_module(f"{_SCHED}.async_scheduler").AsyncScheduler
        return kind(
            **_known(
                self._plain.__init__,
                vllm_config=vllm_config(scenario, self.defaults),
                kv_cache_config=cache,
                structured_output_manager=Grammars(),
                block_size=self._largest_unit(scenario, groups),
                hash_block_size=scenario["block_size"],
                log_stats=False,
            )
        )

    def _largest_unit(self, scenario: Scenario, groups: list[Any]) -> int:
        """Tokens that fill blocks of all groups, where a release has another size for hashes."""
        if "hash_block_size" not in inspect.signature(self._plain.__init__).parameters:
            return scenario["block_size"]
        return lcm(*(group.kv_cache_spec.block_size for group in groups))

    def _spec(self, scenario: Scenario, kind: str, tokens: int, span: int = 1) -> Any:
        """What a group of layers keeps."""
        size = scenario["block_size"] * span
        heads = {"num_kv_heads": 1, "head_size": 1, "dtype": "float32", "use_mla": False}
        if kind == "window":
            made, own = self._kv.SlidingWindowSpec, {"sliding_window": tokens, **heads}
        elif kind == "chunked":
            made, own = self._kv.ChunkedLocalAttentionSpec, {"attention_chunk_size": tokens, **heads}
        elif kind == "state":
            size *= _ceil_div(scenario["max_model_len"], size)
            made, own = self._kv.MambaSpec, {"shapes": ((1,),), "dtypes": ("float32",)}
        elif kind == "aligned":
            made, own = self._kv.MambaSpec, {"shapes": ((1,),), "dtypes": ("float32",)}
            own["mamba_cache_mode"] = "align"
            if tokens:
                own |= {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": tokens}
        else:
            made, own = self._kv.FullAttentionSpec, heads
        return made(**_known(made, block_size=size, **own))

    def _retention(self, groups: list[Any]) -> int | None:
        """The release's default, which a server without windows and states does not have."""
        kinds = (self._kv.SlidingWindowSpec, self._kv.MambaSpec)
        if not any(isinstance(group.kv_cache_spec, kinds) for group in groups):
            return None
        found = self.defaults.get("CacheConfig", {}).get("prefix_cache_retention_interval")
        return 0 if found == config_defaults.NO_LITERAL else found

    def request(self, scenario: Scenario, spec: RequestSpec) -> Any:
        """A request of a scenario."""
        params = Section(
            max_tokens=answer_limit(scenario, spec),
            min_tokens=0,
            eos_token_id=EOS_TOKEN,
            stop_token_ids=(),
            all_stop_token_ids=set(),
            ignore_eos=False,
            valid_drafts=partial(valid_drafts, spec) if spec.get("grammar") else None,
        )
        request = self._request(
            **_known(
                self._request.__init__,
                request_id=spec["id"],
                prompt_token_ids=token_ids(spec["prompt"]),
                sampling_params=params,
                pooling_params=None,
                multi_modal_inputs=None,
                multi_modal_hashes=None,
                multi_modal_placeholders=None,
                arrival_time=spec["arrival"],
                priority=spec["priority"],
                block_hasher=_hasher(scenario["block_size"]) if scenario["enable_prefix_caching"] else None,
                eos_token_id=EOS_TOKEN,
            )
        )
        if request.structured_output_request is not None:
            request.structured_output_request.request = request
        return request


def _known(function: Any, **arguments: Any) -> dict[str, Any]:
    """Those arguments that a function takes in this release."""
    return {
        name: value for name, value in arguments.items() if name in inspect.signature(function).parameters
    }


def _hasher(block_size: int) -> Any:
    """vLLM's `block_hasher`: chained hashes of the full blocks that have none yet."""

    def hashes(request: Any) -> list[bytes]:
        ids, found = request._all_token_ids, []
        done = len(request.block_hashes)
        last = request.block_hashes[-1] if done else b""
        for index in range(done, len(ids) // block_size):
            part = ids[index * block_size : (index + 1) * block_size]
            last = blake2b(last + repr(part).encode(), digest_size=16).digest()
            found.append(last)
        return found

    return hashes


if __name__ == "__main__":
    child_loop.limit_memory(int(sys.argv[2]))
    vllm = Vllm(Path(sys.argv[1]))
    child_loop.serve(vllm.drive, {"defaults": vllm.defaults.get("SchedulerConfig", {})})
