"""Host time of one decode step of the engine, without the model: what a GPU step has to hide or add.

    python benchmarks/engine_host_overhead.py [--sequences 64] [--steps 400] [--repeat 7] [--sampling greedy]
                                              [--text none] [--changing]

A model and a sampling kernel that do nothing stand in for the real ones, so the rest is scheduling, batch
preparation and bookkeeping, the step log included. Thread CPU time on one core; prints JSON with
microseconds per step: `step_us` and its segments are medians over all steps, `best_us` is the fastest step
(what is left when no other process slows the core down), and `calibration_ns` the speed of this core (see
`measure.calibrate`).

`--text` says what becomes of the tokens, with a byte-level BPE: `none`; `delivered` to a listener, by the
output thread; `stop`, the same with a stop string that the engine's thread has to look for; `in-loop`, every
text kept up to date by the thread that steps, which is what `delivered` saves it. With `--changing` one
request arrives and one ends in every step; the arrival counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import calibrate, pin
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engine.sampler
from blis_py.traces.steplog_columns import SEGMENTS
from engine.build import build_engine
from engine.clock import Clock, CpuClock, WallClock
from engine.config import EngineConfig
from engine.emission import StepOutput
from engine.engine import LLMEngine
from engine.kernels.sampling import SamplingTensors
from engine.models.tokenizer import Tokenizer
from engine.output_stream import OutputDelta
from engine.output_text import OutputText
from engine.sampling_params import SamplingParams

_VOCABULARY = 128
_PROMPT_TOKENS = 128
_PAGE = 16
_ENDLESS = 3000
_WARM_UP_STEPS = 20
_TEXTS = ("none", "delivered", "stop", "in-loop")
_SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "random": {"temperature": 0.8},
    "filtered": {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
}


@dataclass
class _Sizes:
    num_layers: int = 1
    num_kv_heads: int = 1
    head_dim: int = 1
    vocab_size: int = _VOCABULARY
    max_position_embeddings: int = 8192


@dataclass
class NoModel:
    """Any token follows any other."""

    config: _Sizes = field(default_factory=_Sizes)
    answers: dict[int, torch.Tensor] = field(default_factory=dict)

    def __call__(self, input_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        return input_ids

    def track_expert_load(self) -> None: ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        if rows not in self.answers:
            self.answers[rows] = torch.rand(rows, _VOCABULARY, generator=torch.Generator().manual_seed(0))
        return self.answers[rows]


def no_sampling(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """In place of the kernel: some token for each row."""
    return params.positions


class Pieces:
    """A byte-level BPE of single characters, run by the `tokenizers` package as that of a checkpoint is."""

    vocab_size = _VOCABULARY
    eos_ids = frozenset[int]()

    def __init__(self) -> None:
        import tokenizers

        characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[:_VOCABULARY]
        self._tokenizer = tokenizers.Tokenizer(
            tokenizers.models.BPE({character: i for i, character in enumerate(characters)}, [])
        )
        self._tokenizer.decoder = tokenizers.decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Any) -> str:
        return str(self._tokenizer.decode(ids))


class InLoop:
    """Keeps texts up to date in the thread that steps; nothing where that is not requested."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, OutputText] = {}

    def __call__(self, output: StepOutput) -> None:
        if self._tokenizer is None:
            return
        for sequence, token in zip(output.sequences, output.tokens, strict=True):
            if sequence.index not in self._texts:
                self._texts[sequence.index] = OutputText(self._tokenizer)
            self._texts[sequence.index].append([token])


def measure(
    sequences: int, steps: int, sampling: str, text: str, changing: bool
) -> dict[str, NDArray[np.float64]]:
    """Microseconds of each of `steps` steps that all compute for `sequences` requests, and of their segments.

    The engine looks at its clock six times a step, and the CPU time of a thread is dear to ask for. So
    whole steps are those of an engine on the wall clock, as on a GPU, and segments come from another one.
    """
    llm = decoding(sequences, sampling, WallClock(), text, changing)
    in_loop = InLoop(llm.tokenizer if text == "in-loop" else None)
    wholes = np.zeros(steps)
    for i in range(steps):
        begin_ns = time.thread_time_ns()
        if changing:
            add(llm, i, sampling)
        in_loop(llm.step())
        wholes[i] = (time.thread_time_ns() - begin_ns) / 1e3
    llm.shutdown()
    llm = decoding(sequences, sampling, CpuClock(), text, changing)
    first = llm.recorder.steps
    for i in range(steps):
        if changing:
            add(llm, i, sampling)
        llm.step()
    log = llm.recorder.log()
    llm.shutdown()
    return {"step_us": wholes, **{name[:-3] + "_us": log.column(name)[first:] / 1e3 for name in SEGMENTS}}


def add(llm: LLMEngine, index: int, sampling: str, max_tokens: int = _ENDLESS, **wanted: Any) -> None:
    """One more request; of those with consecutive indices, one at a time needs a new page."""
    prompt = [(index * 7 + j) % _VOCABULARY for j in range(_PROMPT_TOKENS + index % _PAGE)]
    params = {"detokenize": False, **_SAMPLING[sampling], **wanted}
    on_delta = _taken if params["detokenize"] else None
    llm.add_request(prompt, SamplingParams(max_tokens=max_tokens, **params), on_delta=on_delta)


def decoding(
    sequences: int, sampling: str, clock: Clock, text: str = "none", changing: bool = False
) -> LLMEngine:
    """An engine that has so many sequences decoding.

    Args:
        changing: in each of the following steps another one of them ends.
    """
    config = EngineConfig(
        model="none",
        device="cpu",
        max_num_seqs=sequences + changing,
        max_num_batched_tokens=_PROMPT_TOKENS * sequences + 2 * _PAGE * sequences,
        max_model_len=4096,
        num_kv_blocks=256 * sequences,
        block_size=_PAGE,
    )
    tokenizer = None if text == "none" else Pieces()
    llm = build_engine(config, model=NoModel(), tokenizer=tokenizer, clock=clock)
    delivered = text in ("delivered", "stop")
    wanted: dict[str, Any] = {"detokenize": delivered}
    if text == "stop":
        wanted["stop"] = ["no text has this"]
    for i in range(sequences):
        add(llm, i, sampling, _WARM_UP_STEPS + 2 + i if changing else _ENDLESS, **wanted)
    while len(llm.step().tokens) < sequences:
        pass
    for _ in range(_WARM_UP_STEPS):
        llm.step()
    return llm


def _taken(delta: OutputDelta) -> None:
    """By a client."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--sampling", choices=_SAMPLING, default="greedy")
    parser.add_argument("--text", choices=_TEXTS, default="none")
    parser.add_argument("--changing", action="store_true", help="one arrives and one ends in every step")
    options = parser.parse_args()
    pin(None)
    torch.set_num_threads(1)
    speed = calibrate()
    engine.sampler.sample = no_sampling  # type: ignore[attr-defined]
    runs = [
        measure(options.sequences, options.steps, options.sampling, options.text, options.changing)
        for _ in range(options.repeat)
    ]
    result: dict[str, Any] = {
        name: float(np.median(np.concatenate([run[name] for run in runs]))) for name in runs[0]
    }
    result["best_us"] = float(min(run["step_us"].min() for run in runs))
    result |= {
        "sequences": options.sequences,
        "sampling": options.sampling,
        "text": options.text,
        "steps": options.steps,
        "changing": options.changing,
    }
    result |= {"repeat": options.repeat, "calibration_ns": statistics.mean((speed, calibrate()))}
    print(json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in result.items()}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
