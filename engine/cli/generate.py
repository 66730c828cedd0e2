"""`blis engine generate`: prompts in, text out."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from pathlib import Path

from blis_py.cli.flags.flag import Flag, Flags
from blis_py.cli.progress import Progress
from blis_py.errors import InputError
from blis_py.files.opening import read_text
from engine.cli import kinds
from engine.cli.grammar import STRUCTURED, structured_outputs
from engine.cli.options import ENGINE, STEP_LOG
from engine.engine import LLMEngine
from engine.llm import Engine, Prompt, RequestOutput, stream
from engine.llm import generate as run
from engine.output_stream import OutputDelta
from engine.sampling_params import SamplingParams

PROMPTS = (
    Flag("--prompt", list[str], "", "A prompt (repeatable).", metavar="TEXT"),
    Flag("--prompts-file", str, "", "One prompt per line; - reads standard input.", metavar="FILE"),
)
SAMPLING = (
    Flag("--temperature", float, "temperature", f"0 = greedy. Default 1; 0 for {kinds.TITLE}."),
    Flag("--top-k", int, "top_k", "Only the k most likely tokens; 0 = all. Default 0."),
    Flag("--top-p", float, "top_p", "Only the most likely tokens of this probability. Default 1."),
    Flag("--min-p", float, "min_p", "Only tokens of this share of the likeliest one's. Default 0."),
    Flag("--sampling-seed", int, "seed", "The same random numbers for every prompt."),
    Flag("--repetition-penalty", float, "repetition_penalty", "Default 1."),
    Flag("--presence-penalty", float, "presence_penalty", "Default 0."),
    Flag("--frequency-penalty", float, "frequency_penalty", "Default 0."),
    Flag("--max-tokens", int, "max_tokens", "Most tokens to emit. Default 16."),
    Flag("--min-tokens", int, "min_tokens", "No end before so many tokens. Default 0."),
    Flag("--stop", list[str], "stop", "A string that ends the output (repeatable).", metavar="TEXT"),
    Flag("--ignore-eos", bool, "ignore_eos", "Go on after an end of sequence."),
    Flag("--logprobs", int, "logprobs", "Log-probabilities of so many likeliest tokens."),
)
STREAM = Flag(
    "--stream", bool, "", "Write text as it comes; with jsonl a row for every step of every prompt."
)
OUTPUT = (
    STREAM,
    Flag("--format", str, "", "text, or jsonl with everything. By default text on a terminal, else jsonl."),
    STEP_LOG,
)
GROUPS = (
    ("Prompts", PROMPTS),
    ("Sampling", SAMPLING),
    ("Form of the output", STRUCTURED),
    *ENGINE,
    *kinds.GROUPS,
    ("Output", OUTPUT),
)


def generate(flags: Flags) -> None:
    """Complete prompts."""
    style = flags.get("--format", "text" if sys.stdout.isatty() else "jsonl")
    if style not in ("text", "jsonl"):
        raise InputError("unknown format", key="--format", value=style, fix="use text or jsonl")
    prompts = _prompts(flags)
    if STREAM.name in flags and style == "text" and len(prompts) > 1:
        fix = "add --format jsonl, which says whose it is"
        raise InputError("texts of several prompts would run into each other", key=STREAM.name, fix=fix)
    sampling = {flag.key: flags[flag.name] for flag in SAMPLING if flag.name in flags}

    engine = kinds.build(flags)
    if not isinstance(engine, LLMEngine):
        sampling = {"temperature": 0.0, **sampling}  # the only one there is for answers in blocks
    params = SamplingParams(**sampling, structured_outputs=structured_outputs(flags))
    write = _stream if STREAM.name in flags else _at_the_end
    try:
        broken = write(engine, prompts, [params] * len(prompts), style)
    finally:
        engine.shutdown()
        if "--step-log" in flags and engine.recorder.steps:
            engine.recorder.write(flags["--step-log"])
    if broken is not None:
        raise RuntimeError(broken)


def _at_the_end(
    engine: Engine, prompts: list[Prompt], params: list[SamplingParams], style: str
) -> str | None:
    """Print whole outputs in the order of the prompts; return the first error."""
    with Progress(sys.stderr) as progress:
        outputs = run(engine, prompts, params, progress)
    for output in outputs:
        print(json.dumps(_row(output)) if style == "jsonl" else output.text)
    sys.stdout.flush()
    return next((output.error for output in outputs if output.error is not None), None)


def _stream(engine: Engine, prompts: list[Prompt], params: list[SamplingParams], style: str) -> str | None:
    """Print pieces as they arrive; return the first error."""
    broken = None
    for delta in stream(engine, prompts, params):
        if style == "jsonl":
            print(json.dumps(_row(delta)), flush=True)
        else:
            print(delta.text, end="\n" if delta.finish_reason else "", flush=True)
        broken = broken or delta.error
    return broken


def _prompts(flags: Flags) -> list[Prompt]:
    prompts: list[Prompt] = list(flags.get("--prompt", ()))
    if (name := flags.get("--prompts-file")) is not None:
        text = sys.stdin.read() if name == "-" else read_text(Path(name))
        prompts += [line for line in text.splitlines() if line]
    if not prompts:
        raise InputError("no prompts", fix="give --prompt TEXT or --prompts-file FILE")
    return prompts


def _row(output: RequestOutput | OutputDelta) -> dict[str, object]:
    return {field.name: getattr(output, field.name) for field in fields(output)}
