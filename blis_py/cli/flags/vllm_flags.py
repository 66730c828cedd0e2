"""Flags of `vllm bench serve`, and those of servers that need others beside them: none is ignored.

A value that changes nothing is accepted; what cannot be honoured is refused by its name. All other flags of
servers: `server_flags`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blis_py.cli.flags import server_flags as servers
from blis_py.cli.flags.flag import SERVERS, Flag, Flags, Group
from blis_py.config.models import PLAIN_ENGINE
from blis_py.errors import InputError
from blis_py.files.json_files import parse_json
from blis_py.files.yaml_files import load_mapping
from blis_py.models.model_shape import config_name, load_model

_UNCHANGING: dict[str, tuple[str, ...]] = {
    "--dataset-name": ("random",),
    "--dataset-path": (),
    "--num-warmups": ("0",),
    "--ramp-up-strategy": (),
}
"""Values of the benchmark that are what is simulated in any case; every other one asks for something else."""
_WOULD = {
    "--dataset-name": "takes the lengths of its requests from a data set",
    "--dataset-path": "takes its requests from a file",
    "--num-warmups": "sends requests before those that are measured; a simulated server is warm",
    "--ramp-up-strategy": "raises the rate while it runs",
    "--use-beam-search": "computes several answers of each request, so that each decodes as often",
}
"""Effects of flags that are not simulated."""
_INSTEAD = {
    "--dataset-name": "describe the requests with --prompt-tokens and its like, or give them with --trace",
    "--dataset-path": "give its requests with --trace",
    "--ramp-up-strategy": "give the arrivals with --trace, or phases of a rate in a workload spec",
    "--use-beam-search": "drop it: every request has one answer; a higher --rate stands for more of them",
}
_SWITCHES = ("--use-beam-search",)
"""Change what a client does, and are not simulated."""
_WITHOUT_EFFECT = (
    *("--base-url", "--endpoint", "--backend", "--endpoint-type", "--result-dir", "--tokenizer"),
    *("--result-filename", "--label", "--percentile-metrics", "--metric-percentiles", "--temperature"),
    *("--top-p", "--top-k", "--min-p", "--request-id-prefix", "--ready-check-timeout-sec"),
)
_IDLE = ("--ignore-eos", "--save-result", "--save-detailed", "--append-result", "--disable-tqdm")
_RANGE = "--random-range-ratio"
_STREAM = "--stream-interval"
_RANKS = "--data-parallel-size"
_ALL_RANKS = "--enable-expert-parallel"
_OF_BLIS = ("trained-physics", "roofline")
_WIDTHS = ("--tp", "--tensor-parallel-size", "--tp-size", "-tp")
_LENGTHS = {"input": ("--random-input-len", "--isl"), "output": ("--random-output-len", "--osl")}
"""Flags of the lengths: vLLM's benchmark's, and those of AIConfigurator."""
_RANDOM = {"input": 1024, "output": 128}
"""Tokens of the requests of `--dataset-name random`, all alike, by default."""

FLAGS: Group = (
    SERVERS,
    (
        *(Flag(name, str, "", hidden=True) for name in (*_UNCHANGING, *_WITHOUT_EFFECT)),
        *(Flag(name, bool, "", hidden=True) for name in (*_SWITCHES, *_IDLE)),
        *(Flag(name, bool, "", hidden=True) for name in (*servers.REPLICATED, _ALL_RANKS)),
        Flag(_STREAM, int, "", hidden=True),
        Flag(_RANKS, int, "", aliases=("-dp",), hidden=True),
        Flag(servers.PROMPTS, int, "", hidden=True),
        Flag(
            "--request-rate",
            float,
            "",
            "As --rate; inf = as fast as --max-concurrency allows.",
            metavar="RATE",
        ),
        Flag(
            "--max-concurrency",
            int,
            "",
            "As --concurrency; of BLIS's engine or gateway, its detector's limit.",
        ),
        Flag("--scheduling-policy", str, "", "fcfs or priority, as --scheduler fcfs or priority-fcfs."),
        Flag("--burstiness", float, "", "Gamma arrivals of this shape; 1 = poisson.", metavar="SHAPE"),
        Flag("--random-input-len", int, "", "Prompts of so many tokens each.", ("--isl",)),
        Flag("--random-output-len", int, "", "Answers of so many tokens each.", ("--osl",)),
        Flag("--random-prefix-len", int, "", "As --prefix-tokens."),
        Flag(_RANGE, str, "", "Uniform lengths around those, as --backend has it.", metavar="R"),
    ),
)
_REPLICAS = {"--dp-size", "--attention-dp"}
_POLICIES = {"fcfs": "fcfs", "priority": "priority-fcfs"}


def refuse(flags: Flags) -> None:
    """
    Raises:
        InputError: the first flag that asks for something that is not simulated.
    """
    for name, value in flags.items():
        unchanging = _UNCHANGING.get(name)
        if name in _SWITCHES or (unchanging is not None and value not in unchanging):
            raise InputError(
                f"is a flag of vLLM that cannot be honoured: {_WOULD[name]}",
                key=name,
                value=None if value is True else value,
                fix=_INSTEAD.get(name, "drop it"),
            )
    replicas = any(key == "attention_dp" for _, key, _ in servers.settings(flags))
    if servers.SGLANG_REPLICATED in flags and not (replicas or _REPLICAS & flags.keys()):
        key, fix = servers.SGLANG_REPLICATED, "add --attention-dp N"
        raise InputError("does not say how many replicas", key=key, fix=fix)
    ranks = int(flags[_RANKS] if _RANKS in flags else flags.get("-dp", 1))
    if ranks < 1:
        raise InputError("must be at least 1", key=_RANKS, value=ranks)


def notes(flags: Flags) -> list[str]:
    """The meaning of an accepted flag here, where it may have been meant otherwise."""
    found = []
    if "--max-concurrency" in flags and _of_the_detector(flags):
        where = "under --engine blis" if flags.get("--engine") == PLAIN_ENGINE else "with --flow-control"
        meaning = f"{where} --max-concurrency is the limit of BLIS's saturation detector"
        found.append(f"{meaning}; --concurrency limits a client's requests under way")
    if _ALL_RANKS in flags and _is_blis(flags):
        found.append(f"{_ALL_RANKS} has no effect on BLIS's latency models, as in BLIS")
    if flags.get(_STREAM, 1) > 1:
        found.append(f"{_STREAM} is taken for 1: ITL is of tokens as they are made, not of chunks of them")
    budget = servers.prompt_budget(flags)
    if budget is not None:
        found.append(budget)
    if "--dp-size" in flags and "--enable-dp-attention" not in flags:
        found.append("--dp-size is the number of replicas of attention, as with --enable-dp-attention")
    return found


def _of_the_detector(flags: Flags) -> bool:
    """Whether `--max-concurrency` is meant as by BLIS, and not as by the benchmark of vLLM."""
    return flags.get("--engine") == PLAIN_ENGINE or "--flow-control" in flags


def settings(flags: Flags) -> list[tuple[str, str, Any]]:
    """Settings by vLLM's own flags, as (flag, key, value).

    Raises:
        InputError: a policy that vLLM does not have; an endless rate without a limit.
    """
    given = [*_requests(flags), *_arrivals(flags), *_distributed(flags)]
    given += servers.settings(flags)
    if servers.TRTLLM_REPLICATED in flags and not _REPLICAS & flags.keys():
        gpus = next((flags[name] for name in _WIDTHS if name in flags), None)
        if gpus is None:
            key, fix = servers.TRTLLM_REPLICATED, "add --tp N or --attention-dp N"
            raise InputError("does not say over how many GPUs", key=key, fix=fix)
        given.append((servers.TRTLLM_REPLICATED, "attention_dp", gpus))
    if "--scheduling-policy" in flags:
        name = flags["--scheduling-policy"]
        if name not in _POLICIES:
            raise InputError(
                "unknown value", key="--scheduling-policy", value=name, fix="use fcfs or priority"
            )
        given.append(("--scheduling-policy", "scheduler.policy", _POLICIES[name]))
    if "--max-concurrency" in flags:
        key = "gateway.max_concurrency_per_instance" if _of_the_detector(flags) else "workload.concurrency"
        given.append(("--max-concurrency", key, flags["--max-concurrency"]))
    rate = flags.get("--request-rate")
    if rate is not None and math.isfinite(rate):
        given.append(("--request-rate", "workload.rate", rate))
    elif rate is not None and not {"--concurrency", "--max-concurrency"} & flags.keys():
        fix = "add --max-concurrency, or give a finite rate"
        raise InputError("would send everything at once", key="--request-rate", value=rate, fix=fix)
    return given


def _distributed(flags: Flags) -> Iterator[tuple[str, str, Any]]:
    """vLLM's expert parallelism is always over all GPUs; BLIS's latency models do not price it."""
    if _ALL_RANKS not in flags or _is_blis(flags):
        return
    gpus = next((flags[name] for name in _WIDTHS if name in flags), None)
    if gpus is None and {_RANKS, "-dp"} & flags.keys():
        gpus = 1
    if gpus is None:
        raise InputError("does not say over how many GPUs", key=_ALL_RANKS, fix="add --tp N, or give --ep N")
    yield _ALL_RANKS, "ep", gpus


def widened(given: list[tuple[str, str, Any]], flags: Flags) -> list[tuple[str, str, Any]]:
    """The settings, `--data-parallel-size` among them: with experts all ranks are one instance, whose layers
    of attention are replicated; without, each is an instance
    (`vllm/model_executor/layers/fused_moe/config.py`, FusedMoEParallelConfig.make)."""
    name = "-dp" if "-dp" in flags else _RANKS
    ranks = flags.get(name, 1)
    if ranks == 1:
        return given
    if not (_ALL_RANKS in flags or _has_experts(flags)):
        return [*given, (name, "num_instances", ranks)]
    width = next((value for _, key, value in given if key == "tp"), 1)
    wide = {"tp": width * ranks, "ep": width * ranks}
    own = [
        (flag, key, wide[key] if key == "tp" or flag == _ALL_RANKS else value)
        if key in wide
        else (flag, key, value)
        for flag, key, value in given
    ]
    if not any(key == "tp" for _, key, _ in own):
        own.append((name, "tp", ranks))
    return [*own, (name, "attention_dp", ranks)]


def _has_experts(flags: Flags) -> bool:
    """Whether the model that flags or the configuration file name is a mixture of experts."""
    written = load_mapping(Path(flags["--config"])) if "--config" in flags else {}
    config = flags.get("--model-config", written.get("model_config"))
    name = flags.get("--model", written.get("model"))
    try:
        return load_model(str(name or config_name(str(config))), config).moe_layers > 0
    except (InputError, TypeError):
        return False  # reported where the model is loaded


def _is_blis(flags: Flags) -> bool:
    """Whether steps are priced by a latency model of BLIS."""
    usual = "trained-physics" if flags.get("--engine") == PLAIN_ENGINE else ""
    return flags.get("--latency-model", usual) in _OF_BLIS


def _requests(flags: Flags) -> Iterator[tuple[str, str, Any]]:
    """Those of `--dataset-name random`: all of the same length, or uniform in a range around it."""
    if "--random-prefix-len" in flags:
        yield "--random-prefix-len", "workload.prefix_tokens", flags["--random-prefix-len"]
    for (side, usual), key in zip(_RANDOM.items(), ("prompt", "output"), strict=True):
        name = next((spelling for spelling in _LENGTHS[side] if spelling in flags), _LENGTHS[side][0])
        tokens = flags.get(name, usual if {"--dataset-name", _RANGE} & flags.keys() else None)
        if tokens is not None:
            if _RANGE in flags:
                least, most = _range(flags, side, tokens)
                yield _RANGE, f"workload.{key}_tokens_min", least
                yield _RANGE, f"workload.{key}_tokens_max", most
                continue
            yield name, f"workload.{key}_tokens", tokens
            yield name, f"workload.{key}_tokens_stdev", 0
    if _RANGE in flags:
        yield _RANGE, "workload.length_law", "uniform"


def _range(flags: Flags, side: str, tokens: int) -> tuple[int, int]:
    """The least and the most tokens: around the given ones as in vLLM, or up to them as in SGLang.

    Raises:
        InputError: not a ratio.
    """
    sglang = str(flags.get("--backend", "")).startswith("sglang")
    ratio = _ratio(flags[_RANGE], side)
    if ratio is None or not 0 <= ratio <= 1 or (ratio == 1 and not sglang):
        fix = 'write 0.5, or for --backend vllm {"input": 0.3, "output": 0.5}'
        raise InputError("must be from 0 to 1", key=_RANGE, value=flags[_RANGE], fix=fix)
    if sglang:
        return max(int(tokens * ratio), 1), tokens
    return max(math.floor(round(tokens * (1 - ratio), 6)), 1), math.ceil(round(tokens * (1 + ratio), 6))


def _ratio(text: str, side: str) -> float | None:
    """The ratio of a side in vLLM's two spellings; None if it is neither."""
    try:
        given = parse_json(text, _RANGE)
    except InputError:
        return None
    value = given.get(side) if isinstance(given, dict) else given
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _arrivals(flags: Flags) -> Iterator[tuple[str, str, Any]]:
    shape = flags.get("--burstiness")
    if shape is None or shape == 1:
        return
    if not (math.isfinite(shape) and shape > 0):
        raise InputError("must be positive", key="--burstiness", value=shape)
    yield "--burstiness", "workload.arrival", "gamma"
    yield "--burstiness", "workload.cv", shape**-0.5
