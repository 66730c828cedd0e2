"""What SGLang's modules find in those that are stood in: settings of a plain server on one device, and values
that must be right. Imports the standard library alone, as stand-ins come before anything else."""

from __future__ import annotations

import ast
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple


class Section(SimpleNamespace):
    """Settings; what is not set is None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


class Zero(int):
    """A counter that is not read, or a function of one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Zero:
        return Zero()

    def __getattr__(self, name: str) -> Zero:
        return Zero()


class Silent:
    """Counters and outputs that nothing reads."""

    def __getattr__(self, name: str) -> Zero:
        if name.startswith("__"):
            raise AttributeError(name)
        return Zero()


class ForwardMode(IntEnum):
    """Stands for the enumeration of the same name."""

    EXTEND = 1
    DECODE = 2
    IDLE = 4
    DLLM_EXTEND = 11

    def is_extend(self) -> bool:
        """A step of prompts."""
        return self == ForwardMode.EXTEND

    def is_decode(self) -> bool:
        """A step of decodes."""
        return self == ForwardMode.DECODE

    def is_idle(self) -> bool:
        """None of both."""
        return self == ForwardMode.IDLE

    def is_prebuilt(self) -> bool:
        """KV has come from elsewhere: never."""
        return False


class HiddenMode(IntEnum):
    """No hidden states are captured."""

    NULL = 0
    LAST = 1
    FULL = 2

    def need_capture(self) -> bool:
        """Never."""
        return False


class NoDrafts:
    """No speculative decoding."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: name == "is_none"


class Range(NamedTuple):
    """Stands for the class of the same name."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Positions between."""
        return self.end - self.start


class PlainRequest:
    """A request of no diffusion model."""

    dllm_config = None

    def init_diffusion_llm(self, config: Any) -> None:
        """Nothing to prepare."""

    def is_dllm(self) -> bool:
        """Never."""
        return False


class Default:
    """Factory of a field's value."""

    def __init__(self, factory: Any) -> None:
        self.factory = factory


class Struct:
    """Fields by annotation, as those of msgspec."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Accept the options of a class."""

    def __init__(self, *args: Any, **values: Any) -> None:
        names = [n for kind in reversed(type(self).__mro__) for n in vars(kind).get("__annotations__", {})]
        for name in names:
            if hasattr(type(self), name):
                value = getattr(type(self), name)
                setattr(self, name, value.factory() if isinstance(value, Default) else value)
        for name, value in [*zip(names, args, strict=False), *values.items()]:
            setattr(self, name, value)


def field(default: Any = None, default_factory: Any = None, **options: Any) -> Any:
    """A field of a `Struct`."""
    return Default(default_factory) if default_factory else default


def _no(*args: Any, **kwargs: Any) -> bool:
    return False


def _new_pages(seq_lens: Any, page_size: int, prefix_lens: Any = None, decode: bool = False) -> int:
    if decode:
        return int((seq_lens % page_size == 1).sum())
    pages = (seq_lens + page_size - 1) // page_size - (prefix_lens + page_size - 1) // page_size
    return int(pages.sum())


ARGUMENTS = Section(
    disaggregation_mode="null",
    attention_backend="torch_native",
    schedule_conservativeness=1.0,
    radix_eviction_policy="lru",
    decode_log_interval=1,
    schedule_policy="fcfs",
    schedule_low_priority_values_first=True,
    enable_mamba_extra_buffer=_no,
    enable_mamba_extra_buffer_lazy=_no,
)
"""Arguments of the server, in releases that pass them as one."""
SCHEDULE = Section(
    schedule_policy="fcfs", schedule_conservativeness=1.0, schedule_low_priority_values_first=True
)
"""The same of its scheduler, in releases that divide them."""
PARALLEL = Section(dcp_size=1, attn_dcp_size=1, pp_size=1)
_CONTEXT = {
    "schedule": SCHEDULE,
    "parallel": PARALLEL,
    "memory": Section(radix_eviction_policy="lru"),
    "exec": Section(
        kernel=Section(attention_backend="torch_native"),
        features=Section(),
        deterministic=Section(),
        mamba=Section(),
    ),
    "disagg": Section(disaggregation_mode="null"),
    **{name: Section() for name in ("spec", "device", "serving", "model", "observability")},
}
_PLATFORM = Section(
    capabilities=Section(supports_triton=False),
    is_cpu=lambda: True,
    **{f"is_{name}": _no for name in ("cuda", "hip", "npu", "out_of_tree")},
)
_UTILITIES = {
    **{f"is_{name}": _no for name in ("hip", "npu", "cuda", "mps", "xpu", "musa", "gfx95_supported")},
    **dict.fromkeys(("support_triton", "get_bool_env_var", "is_pin_memory_available"), _no),
    "Range": Range,
    "is_cpu": lambda: True,
    "get_int_env_var": lambda name, default=0: default,
    "get_num_new_pages": _new_pages,
    "next_power_of_2": lambda number: number,
    "ceil_align": lambda number, size: -(-number // size) * size,
    "ceil_div": lambda number, size: -(-number // size),
    "flatten_arrays_to_pinned_cpu": lambda arrays, pinned: None,
}
_BATCH = {"ForwardMode": ForwardMode, "CaptureHiddenMode": HiddenMode}
PARTS: dict[str, dict[str, Any]] = {
    "msgspec": {"Struct": Struct, "field": field},
    "sglang.srt.utils": _UTILITIES,
    "sglang.srt.utils.common": _UTILITIES,
    "sglang.srt.server_args": {"get_global_server_args": lambda: ARGUMENTS},
    "sglang.srt.model_executor.forward_batch_info": _BATCH,
    "sglang.srt.runtime_context": {
        **{f"get_{name}": (lambda section=section: section) for name, section in _CONTEXT.items()},
        "attention_backends": lambda: ("torch_native", "torch_native"),
        "get_server_args": lambda: ARGUMENTS,
    },
    "sglang.srt.platforms": {"current_platform": _PLATFORM},
    "sglang.srt.mem_cache.allocator.page_interleave": {"page_interleave_shard_size": lambda allocator: 1},
    "sglang.srt.layers.utils.cp_utils": {
        "is_dsa_prefill_cp_in_seq_split": _no,
        "is_prefill_context_parallel_enabled": _no,
    },
    "sglang.srt.disaggregation.utils": {
        "prepare_abort": lambda request, *args, **kwargs: setattr(request, "finished_reason", "abort"),
        "DisaggregationMode": SimpleNamespace(NULL="null", PREFILL="prefill", DECODE="decode"),
    },
    "sglang.srt.dllm.mixin.req": {"ReqDllmMixin": PlainRequest},
}
"""Attributes of stand-ins, by module."""


def plain_mixins(root: Path, modules: tuple[str, ...], kept: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Empty classes for the mixins that modules import, so that what they lack is missing.

    Args:
        kept: modules with mixins that are used as they are.
    """
    found: dict[str, dict[str, Any]] = {}
    for module in modules:
        path = root / f"{module.replace('.', '/')}.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module not in kept:
                for name in (alias.name for alias in node.names if alias.name.endswith("Mixin")):
                    found.setdefault(node.module, {})[name] = type(name, (), {})
    return found
