"""Step times and capacities of random models, GPUs, layouts and tables of measurements."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from shutil import copytree
from typing import Any

import yaml
from drawing import Values, digest, drawn, kept

from blis_py.core.diffusion_features import DiffusionFeatures
from blis_py.core.features import StepFeatures
from blis_py.core.rank_features import RankedFeatures
from blis_py.errors import InputError
from blis_py.latency.base import LatencyModel
from blis_py.latency.notes import domain_notes

SCENARIO = Path(__file__).parent / "inputs" / "scenario"

MODELS = (
    *("qwen3-14b", "llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "gpt-oss-20b"),
    *("llama-4-scout", "qwen3-30b-a3b", "kimi-k2.5-nvfp4", "llama-3.1-70b-fp8", "qwen3.5-397b-a17b"),
    *("minimax-m2.5", "qwen3-32b-fp8", "deepseek-v2-lite", "llama-4-maverick", "qwen3.5-27b"),
)
PRICED: Values = {
    "gpu": (
        "h100",
        "h200",
        "b200",
        "gb200",
        "a100-80",
        "l40s",
        "mi300x",
        "rtx-4090",
        "rtx-pro-6000",
        "l4",
        "a10g",
    ),
    "+layout": (
        *(
            {"tp": 1},
            {"tp": 2},
            {"tp": 4},
            {"tp": 8},
            {"tp": 8, "ep": 8},
            {"tp": 4, "ep": 2},
            {"tp": 2, "attention_dp": 2},
        ),
        {"tp": 8, "ep": 8, "attention_dp": 8, "redundant_experts": 8},
        {"tp": 8, "ep": 4, "attention_dp": 2},
        {"tp": 16, "ep": 16, "attention_dp": 16, "link_gbps": 400.0},
    ),
    "engine": ("vllm", "sglang", "trtllm", "blis"),
    "latency_model": ("trained", "trained", "roofline", "trained-physics"),
    "kv_cache_dtype": ("fp8", "auto"),
    "fused_norms": (True, False),
    "cuda_graphs": (True, True, False),
    "cuda_graph_padding": (True, False),
    "cuda_graph_max_size": (8, 64, 300),
    "cuda_graph_sizes": ([1, 2, 8, 40],),
    "link_gbps": (50.0, 400.0),
    "moe_backend": ("auto", "cutlass", "triton", "deepgemm"),
    "max_num_seqs": (16, 64, 1000),
}


def prices(first: str, count: str) -> Iterator[str]:
    """Capacity and step times of random models on random GPUs, with random layouts and engines."""
    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"prices {seed}")
        settings = {"model": rng.choice(MODELS), "gpu": rng.choice(PRICED["gpu"])}
        settings |= {"num_requests": 2, "rate": 10, "max_model_len": 8192}
        settings |= {"tp": 8, **drawn(PRICED, 0.35, rng)}
        yield f"{seed} {' '.join(kept(settings, rng, _priced))}"


def _priced(settings: dict[str, Any], rng: Random) -> Iterator[str]:
    from blis_py.api import build

    simulation = build(**settings)
    yield f"{simulation.config.model} {simulation.config.tp} {digest(simulation.capacity)}"
    yield f"notes {digest(simulation.notes)} frontend {digest(simulation.latency.frontend)}"
    yield from _times(simulation.latency, rng)


def tables(kind: str, first: str, count: str) -> Iterator[str]:
    """Step times of measured tables and profiles whose numbers are scaled, each by itself; of sparse ones
    every fifth row is missing."""
    from blis_py.hardware.gpu import load_gpu
    from blis_py.latency import build
    from blis_py.models.model_shape import load_model

    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"{kind} {seed}")
        with tempfile.TemporaryDirectory() as place:
            folder = copytree(SCENARIO / kind.removeprefix("sparse-"), Path(place, kind))
            for file in sorted(folder.iterdir()):
                if kind.startswith("sparse-") and file.suffix == ".csv":
                    heading, *rows = file.read_text(encoding="utf-8").splitlines()
                    kept_rows = [row for row in rows if rng.random() < 0.8]
                    file.write_text("\n".join([heading, *kept_rows, ""]), encoding="utf-8")
                _scale(file, rng)
            try:
                if kind == "fitted":
                    gpu = rng.choice((None, load_gpu("h100")))
                    model = build("fitted", shape=load_model("qwen3-0.6b"), gpu=gpu, profile=folder)
                else:
                    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100")
                    model = build("kernel-tables", shape=shape, gpu=gpu, kernel_profile=folder)
                yield f"{seed} {' '.join(_times(model, rng))}"
            except InputError as error:
                yield f"{seed} refused: {error}".replace(place, "")


def launched(first: str, count: str) -> Iterator[str]:
    """Small clusters whose host launches kernels beside the GPU, which is at times the slower of both."""
    from cluster_runs import table_of
    from configurations import digest as of_record
    from one_pool import simulate
    from routed_runs import routed

    from blis_py.latency import build
    from blis_py.models.model_shape import load_model

    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"launched {seed}")
        with tempfile.TemporaryDirectory() as place:
            folder = copytree(SCENARIO / "fitted", Path(place, "fitted"))
            _scale(folder / "profile.yaml", rng)
            tree = yaml.safe_load((folder / "profile.yaml").read_text(encoding="utf-8"))
            for regime in tree["fit"]["regimes"].values():
                speed = rng.choice((0.02, 1.0))
                regime["gpu"] = {key: price * speed for key, price in regime["gpu"].items()}
                regime["launching"] = {"step": rng.uniform(1e4, 3e6), "seqs": rng.uniform(0, 9000)}
                drawn_prices = list(regime["launching"].values())
                regime["launching_draws"] = [drawn_prices for _ in regime["gpu_draws"]]
            (folder / "profile.yaml").write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")
            model = build("fitted", shape=load_model("qwen3-0.6b"), gpu=None, profile=folder)
        run = routed(rng)
        config = replace(run.config, async_scheduling=True)
        record = simulate(table_of(run.rows[:40]), scheduler=config, latency=model, num_instances=2)
        yield f"{seed} {of_record(record)} {digest(domain_notes(model))}"


def _scale(file: Path, rng: Random) -> None:
    if file.suffix == ".csv":
        with file.open(newline="") as lines:
            heading, *rows = list(csv.reader(lines))
        last = [[*row[:-1], f"{float(row[-1]) * rng.uniform(0.4, 2.5):.6g}"] for row in rows]
        with file.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows([heading, *last])
    elif file.name == "profile.yaml":
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
        for regime in tree["fit"]["regimes"].values():
            for prices in (regime["gpu"], regime["host"]):
                prices |= {key: (price or 30.0) * rng.uniform(0, 2) for key, price in prices.items()}
        file.write_text(yaml.safe_dump(tree, sort_keys=False), encoding="utf-8")


def _times(plain: LatencyModel, rng: Random) -> Iterator[str]:
    from blis_py.latency.base import overlapped

    for model in (plain, overlapped(plain)):
        alone, mixed, runs = [], [], []
        for _ in range(25):
            features = _features(rng, has_prompts=False)
            alone.append(model.step(features))
            run = model.decode_run(features, rng.choice((2, 9, 300)), rng.randrange(10**9))
            runs += [run.steps, run.end_ns, run.ends_ns().tolist()[:9]]
            mixed.append(model.step(_features(rng, has_prompts=True)))
        yield f"decodes {digest(alone)} runs {digest(runs)} prompts {digest(mixed)}"
    yield f"whole {digest(list(_whole(plain, rng)))}"
    yield f"notes {digest(domain_notes(plain))}"


def _whole(plain: LatencyModel, rng: Random) -> Iterator[Any]:
    """Durations of steps of every kind: of several ranks and of diffusion, too, and with scaled parts."""
    from blis_py.latency.base import overlapped
    from blis_py.latency.scaled import scaled

    factors = rng.choice((0.3, 1.0, 2.5)), rng.choice((0.3, 1.0, 2.5))
    for model in (plain, overlapped(plain), scaled(plain, *factors), overlapped(scaled(plain, *factors))):
        for _ in range(4):
            few, several = (_features(rng, has_prompts=prompts) for prompts in (False, True))
            ranks = [RankedFeatures([_of_rank(rng, n < prompts) for n in range(4)]) for prompts in (0, 2)]
            yield [[model.step_ns(each), model.step(each)] for each in (few, several, *ranks, _round(rng))]
            for each in (few, ranks[0])[: 1 + (ranks[0].decode_seqs > 0)]:
                steps, start_ns = rng.choice((2, 9, 70)), rng.randrange(10**9)
                whole = model.decode_run(each, steps, start_ns)
                cut = model.decode_run(each, steps, start_ns, rng.randrange(start_ns, whole.end_ns + 1))
                first, until = whole.first(rng.randint(1, steps)), whole.until(cut.end_ns)
                yield [
                    [run.steps, run.end_ns] for run in (whole, cut, first, until, whole.then(whole.end_ns))
                ]
        yield [model.name, model.provenance, model.frontend, model.uses_max_context]


def _of_rank(rng: Random, has_prompts: bool) -> StepFeatures:
    return StepFeatures() if rng.random() < 0.2 else _features(rng, has_prompts)


def _round(rng: Random) -> DiffusionFeatures:
    blocks, prompts, context = rng.choice((1, 3, 16)), rng.choice((0, 2)), rng.choice((32, 900))
    tokens = 32 * (blocks + prompts)
    return DiffusionFeatures(
        denoise_blocks=blocks,
        commit_blocks=rng.randint(0, blocks),
        prefill_blocks=prompts,
        begins_batch=rng.randrange(2),
        prefill_seqs=blocks + rng.choice((0, prompts)),
        prefill_tokens=tokens,
        prefill_pairs=tokens * (context + 32),
        prefill_kv_tokens=blocks * context,
        prefill_prompt_pairs=tokens * (context + 32),
        emitted_rows=rng.choice((0, blocks * 7)),
        max_context=context,
    )


def _features(rng: Random, has_prompts: bool) -> StepFeatures:
    prompts = rng.choice((1, 2, 7)) if has_prompts else 0
    tokens = prompts * rng.choice((1, 16, 17, 128, 256, 300, 512, 2000, 2048, 4096))
    past = prompts * rng.choice((0, 0, 0, 64, 1024, 5000))
    seqs = (
        rng.choice((0, 1, 3, 16, 64, 70, 256, 300))
        if has_prompts
        else rng.choice((1, 2, 8, 33, 64, 130, 256, 257, 500, 512))
    )
    context = rng.choice((1, 40, 128, 900, 1024, 4096, 6000))
    pairs = tokens * past // max(1, prompts) + tokens * (tokens + 1) // 2 // max(1, prompts)
    return StepFeatures(
        prefill_seqs=prompts,
        prefill_tokens=tokens,
        prefill_pairs=pairs,
        prefill_kv_tokens=past,
        prefill_prompt_pairs=pairs * 1.5,
        decode_seqs=seqs,
        decode_kv_tokens=seqs * context,
        max_context=rng.choice((-1, max(context * (seqs > 0), past // max(1, prompts)))),
        emitted_rows=seqs + rng.randrange(prompts + 1),
        shared_kv_tokens=rng.choice((0, seqs * context // 3)),
    )
