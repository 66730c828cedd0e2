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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_py.errors import InputError
from blis_py.models.model_shape import known_models
from engine.config import BLOCK_SIZES, EngineConfig
from engine.kernels.checked import CheckedRows, digest
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

    Args:
        resumes: whether `--checked` names a file of rows that need not be found again.

    Raises:
        SystemExit: bad input, with status 2.
    """

    def __init__(self, program: str, what: str, arguments: Sequence[str], resumes: bool = False) -> None:
        if os.environ.get("TRITON_INTERPRET") == "1":
            _refuse("unset TRITON_INTERPRET: the interpreter has nothing to compile")
        self._began_s = time.monotonic()
        self.rows: dict[Variant, str] = {}
        """Text on each variant that was processed without an error, now or before."""
        self.options = _parser(program, what, resumes).parse_args(arguments)
        try:
            if self.options.jobs < 1:
                raise InputError("must be at least 1", key="--jobs", value=self.options.jobs)
            self.gpu = target(self.options.target)
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
        failures, options = 0, self.options
        checked, digests = self._checked()
        left = [variant for variant in self.variants if checked is None or not checked.get(digests[variant])]
        items = [*more, *(variant.data for variant in left)]
        names = [*more, *map(str, left)]
        left_s = None if options.budget_s is None else options.budget_s - (time.monotonic() - self._began_s)
        for done in each(work, items, options.jobs, left_s):
            printed = _print_row(names[done.index], done, row)
            failures += printed is None
            if printed is not None and done.index >= len(more):
                variant = left[done.index - len(more)]
                self.rows[variant] = printed
                if checked is not None:
                    checked.add(digests[variant], printed)
        spent_s = time.monotonic() - self._began_s
        before = len(self.variants) - len(left)
        earlier = f", {before} of them checked before" if before else ""
        total = f"{len(items) + before} in all{earlier}, {failures} failed"
        text = f"{total}: {spent_s:.1f} s, {options.jobs} processes"
        print(text, file=sys.stderr, flush=True)
        return 1 if failures else 0

    def _checked(self) -> tuple[CheckedRows | None, dict[Variant, str]]:
        """Rows of earlier checks, which are printed, and the digest of each variant."""
        path = getattr(self.options, "checked", None)
        if path is None:
            return None, {}
        checked, digests = CheckedRows(path), {each: digest(each, self.gpu) for each in self.variants}
        for variant, key in digests.items():
            if printed := checked.get(key):
                self.rows[variant] = printed
                print(f"{'before':6} {0:6.2f} s  {variant}: {printed}", flush=True)
        return checked, digests

    def _variants(self) -> list[Variant]:
        """Variants of all selected engines, without duplicates."""
        from engine.variants import variants

        options, selected = self.options, dict[Any, None]()
        for name, model in _models(options.model, options.also):
            pages = [size for size in options.block_size or (0,) if size % model.mask_block == 0]
            # Answers in blocks have no cache in float8.
            caches = options.kv_cache_dtype if model.mask_block == 1 else ["auto"]
            for block_size, dtype, cache in product(pages, options.dtype, caches):
                settings = _settings(options, model) | {"block_size": block_size, "kv_cache_dtype": cache}
                config = EngineConfig(model=name, device="cuda", dtype=dtype, **settings)
                selected |= dict.fromkeys(variants(model, config, self.gpu))
        try:
            chosen = [variant for variant in selected if re.search(options.only, str(variant))]
        except re.error as error:
            raise InputError(f"no regular expression: {error}", key="--only", value=options.only) from error
        if not chosen:
            raise InputError(
                "nothing to compile", key="--only", value=options.only, fix="leave it out to see all"
            )
        return chosen


def _print_row(name: str, done: WorkDone, row: Callable[[Any], Row]) -> str | None:
    """Print a row; return its text, None if it has an error."""
    figures, problem = ("", done.error) if done.error else row(done.result)
    state, what = ("FAILED", problem) if problem else ("ok", figures)
    text = " ".join(what.split())
    print(f"{state:6} {done.seconds:6.2f} s  {name}: {text}", flush=True)
    return None if problem else text


def _models(names: Sequence[str], more: Sequence[str]) -> list[tuple[str, ModelConfig]]:
    """The named models, by default the tiny ones and the bundled ones that the engine serves, and `more`."""
    from engine.models.config import load_model_config

    tiny = map(str, checkpoints())
    models = []
    for name in (*(names or (*tiny, *known_models())), *more):
        try:
            models.append((name, load_model_config(name)))
        except InputError:
            if names or name in more:
                raise
    return models


def _settings(options: argparse.Namespace, model: ModelConfig) -> dict[str, Any]:
    """Settings of an engine of this model: those given, and defaults for the model."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if options.dependent_launch and model.mask_block == 1:
        given["dependent_launch"] = True
    if model.mask_block == 1:
        return given
    tokens = given.get("max_num_batched_tokens", EngineConfig.max_num_batched_tokens)
    return {"max_num_seqs": max(1, tokens // model.mask_block), **given}


def _parser(program: str, what: str, resumes: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=what)
    add = parser.add_argument
    add("--model", nargs="+", default=[], help="Folders or bundled models. Default all bundled ones.")
    add("--also", nargs="+", default=[], help="Folders or bundled models beside those of --model.")
    add("--target", default="", help="As in cuda:90. Default the GPU that is present.")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="Processes. Default one per processor.")
    add("--budget-s", type=float, help="What is not done after so many seconds has failed.")
    add("--block-size", type=int, nargs="+", choices=BLOCK_SIZES, help="Pages. Default the engine's own.")
    add("--dtype", nargs="+", choices=("bfloat16", "float16"), default=["bfloat16"], help="Default bfloat16.")
    for name in ("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"):
        add(name, type=int, help="Of the engine. Default its own.")
    add("--kv-cache-dtype", nargs="+", choices=("auto", "fp8"), default=["auto"], help="Default auto.")
    add("--dependent-launch", action="store_true", help="Kernels that are launched early, too.")
    add("--only", default="", help="Variants whose row this regular expression is found in.")
    if resumes:
        add("--checked", type=Path, help="File of kernels found right, which are not compiled again.")
    return parser


def _refuse(problem: str) -> None:
    print(problem, file=sys.stderr)
    raise SystemExit(2)
