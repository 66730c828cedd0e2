"""`blis engine info`: the configuration an engine would run with."""

from __future__ import annotations

import json
from typing import Any

from blis_py.cli.flags.flag import Flags
from blis_py.cli.flags.formats import FORMAT, format_of
from engine.cli import kinds
from engine.cli.options import ENGINE

GROUPS = (
    *ENGINE,
    *kinds.GROUPS,
    ("Output", (FORMAT,)),
)


def info(flags: Flags) -> None:
    """Show the model, its KV cache, the implementation of every op, and how many kernels were compiled."""
    style = format_of(flags)
    facts = _facts(flags)
    if style == "json":
        print(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        print(f"{name:22} {value}")


def _facts(flags: Flags) -> dict[str, Any]:
    import torch

    from engine.engine import LLMEngine
    from engine.kernels import backend

    engine = kinds.build(flags)
    config = engine.scheduler.config
    forward = engine.executor.forward if isinstance(engine, LLMEngine) else engine.executor
    model, kv = forward.model, forward.kv
    sizes, meta = model.config, engine.recorder.meta
    probe = kv[0][0]
    graphs = engine.executor.graphs
    return {
        "model": meta["model"],
        "architecture": sizes.architecture,
        "layers": sizes.num_layers,
        "parameters": sum(p.numel() for p in model.parameters()) if isinstance(model, torch.nn.Module) else 0,
        "vocabulary": sizes.vocab_size,
        "device": meta["device"],
        "dtype": meta["dtype"],
        "max_model_len": config.max_model_len,
        "kv_blocks": config.num_kv_blocks,
        "block_size": config.block_size,
        "kv_tokens": config.num_kv_blocks * config.block_size,
        "kv_cache_bytes": sum(k.nbytes + v.nbytes for k, v in kv),
        "kv_capacity_from": meta["kv_capacity"],
        "attention_norm_mlp": backend.choose(probe, ("triton",)),
        "sampling_routing_pages": backend.choose(probe, ("cuda",)),
        "graph_buckets": list(graphs.buckets) if graphs is not None else [],
        "kernels_compiled": engine.compilations.before_serving.compiled,
        "kernels_loaded": engine.compilations.before_serving.loaded,
        "kernels_seconds": round(engine.compilations.before_serving.seconds, 3),
        "torch": meta["torch"],
    }
