"""Command line of `engine.kernels.warm` and `engine.kernels.aot`: selection of kernels, and a row for
each."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from blis_py.errors import InputError
from blis_py.models.model_shape import known_models
from engine.config import BLOCK_SIZES, EngineConfig
from engine.kernels.gpu import target
from engine.tiny import checkpoints
from engine.workers import WorkDone, each

if TYPE_CHECKING:
    from engine.kernels.dry_run import Variant
    from engine.models.config import ModelConfig

Row = tuple[str, str]
"""Text on an item, and its error; empty if none."""


class KernelCommand:
    """Parsed command line.

    Raises:
        SystemExit: bad input, with status 2.
    """

    def __init__(self, program: str, what: str, arguments: Sequence[str]) -> None:
        if os.environ.get("TRITON_INTERPRET") == "1":
            _refuse("unset TRITON_INTERPRET: the interpreter has nothing to compile")
        self._began_s = time.monotonic()
        self.asked = _parser(program, what).parse_args(arguments)
        try:
            if self.asked.jobs < 1:
                raise InputError("must be at least 1", key="--jobs", value=self.asked.jobs)
            self.gpu = target(self.asked.target)
            self.variants = self._variants()
        except InputError as error:
            _refuse(str(error))

    def run(self, work: Callable[[str], Any], row: Callable[[Any], Row], more: Sequence[str] = ()) -> int:
        """Process the variants, print their rows as they complete and the totals, and return the exit code.

        Args:
            work: takes the data of a variant, or one of `more`.
            row: formats the result.
            more: further items, processed first.
        """
        failures, asked = 0, self.asked
        items = [*more, *(variant.data for variant in self.variants)]
        names = [*more, *map(str, self.variants)]
        left_s = None if asked.budget_s is None else asked.budget_s - (time.monotonic() - self._began_s)
        for done in each(work, items, asked.jobs, left_s):
            failures += not _told(names[done.index], done, row)
        spent_s = time.monotonic() - self._began_s
        told = f"{len(items)} in all, {failures} failed: {spent_s:.1f} s, {asked.jobs} processes"
        print(told, file=sys.stderr, flush=True)
        return 1 if failures else 0

    def _variants(self) -> list[Variant]:
        """Variants of all selected engines, without duplicates."""
        from engine.variants import variants

        asked, found = self.asked, dict[Any, None]()
        for name, model in _models(asked.model):
            pages = [size for size in asked.block_size or (0,) if size % model.mask_block == 0]
            for block_size, dtype in product(pages, asked.dtype):
                settings = _settings(asked, model) | {"block_size": block_size}
                config = EngineConfig(model=name, device="cuda", dtype=dtype, **settings)
                found |= dict.fromkeys(variants(model, config, self.gpu))
        try:
            chosen = [variant for variant in found if re.search(asked.only, str(variant))]
        except re.error as error:
            raise InputError(f"no regular expression: {error}", key="--only", value=asked.only) from error
        if not chosen:
            raise InputError(
                "nothing to compile", key="--only", value=asked.only, fix="leave it out to see all"
            )
        return chosen


def _told(name: str, done: WorkDone, row: Callable[[Any], Row]) -> bool:
    """Print a row; return whether it is free of errors."""
    said, problem = ("", done.error) if done.error else row(done.result)
    state, what = ("FAILED", problem) if problem else ("ok", said)
    print(f"{state:6} {done.seconds:6.2f} s  {name}: {' '.join(what.split())}", flush=True)
    return not problem


def _models(names: Sequence[str]) -> list[tuple[str, ModelConfig]]:
    """The named models; by default the tiny ones and the bundled ones that the engine serves."""
    from engine.models.config import load_model_config

    tiny = map(str, checkpoints())
    found = []
    for name in names or (*tiny, *known_models()):
        try:
            found.append((name, load_model_config(name)))
        except InputError:
            if names:
                raise
    return found


def _settings(asked: argparse.Namespace, model: ModelConfig) -> dict[str, Any]:
    """Settings of an engine of this model: those given, and defaults for the model."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_dtype")
    given = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    if model.mask_block == 1:
        return given
    tokens = given.get("max_num_batched_tokens", EngineConfig.max_num_batched_tokens)
    return {"max_num_seqs": max(1, tokens // model.mask_block), **given}


def _parser(program: str, what: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=what)
    add = parser.add_argument
    add("--model", nargs="+", default=[], help="Folders or bundled models. Default all bundled ones.")
    add("--target", default="", help="As in cuda:90. Default the GPU that is present.")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="Processes. Default one per processor.")
    add("--budget-s", type=float, help="What is not done after so many seconds has failed.")
    add("--block-size", type=int, nargs="+", choices=BLOCK_SIZES, help="Pages. Default the engine's own.")
    add("--dtype", nargs="+", choices=("bfloat16", "float16"), default=["bfloat16"], help="Default bfloat16.")
    for name in ("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"):
        add(name, type=int, help="Of the engine. Default its own.")
    add("--kv-cache-dtype", choices=("auto", "fp8"), help="Of the engine. Default its own.")
    add("--only", default="", help="Variants whose row this regular expression is found in.")
    return parser


def _refuse(problem: str) -> None:
    print(problem, file=sys.stderr)
    raise SystemExit(2)
