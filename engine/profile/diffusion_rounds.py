"""Denoise rounds per block, measured by answering prompts, for each algorithm and threshold."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from blis_py.core.diffusion_request import DiffusionRequest
from blis_py.traces.files import writing
from engine.diffusion.blocks import Algorithm
from engine.diffusion.engine import DiffusionEngine
from engine.diffusion.joint_threshold import JointThreshold
from engine.diffusion.low_confidence import LowConfidence
from engine.sampling_params import SamplingParams
from engine.tiny.tasks import MAX_TOKENS, TASKS, make

ALGORITHMS: tuple[tuple[Algorithm, float], ...] = (
    (LowConfidence(0.8), 0.8),
    (LowConfidence(0.9), 0.9),
    (LowConfidence(0.95), 0.95),
    (JointThreshold(), JointThreshold().threshold),
)
"""Measured algorithms with their thresholds."""
COLUMNS = ("algorithm", "threshold", "task", "request", "prompt_tokens", "output_tokens", "rounds")


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """One answered request."""

    algorithm: str
    threshold: float
    task: str
    request: int
    """Prompt number; equal numbers mean equal prompts."""
    prompt_tokens: int
    output_tokens: int
    rounds: tuple[int, ...]
    """Forwards of each block, including the one that writes the final keys and values."""


def count_rounds(
    engine_with: Callable[[Algorithm], DiffusionEngine],
    prompts: int,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[AnswerShape]:
    """Answer the same prompts under each of `ALGORITHMS`; tasks alternate.

    The rounds of a request do not depend on the rest of its batch.

    Args:
        engine_with: makes an engine that has a tokenizer.

    Raises:
        RuntimeError: a forward failed.
    """
    rng, names = Random(seed), list(TASKS)
    problems = [(names[i % len(names)], make(rng, names[i % len(names)])[0]) for i in range(prompts)]
    answers: list[AnswerShape] = []
    for algorithm, threshold in ALGORITHMS:
        engine = engine_with(algorithm)
        name = type(algorithm).__name__
        params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, detokenize=False)
        running = [engine.add_request(prompt, params) for _, prompt in problems]
        ended = 0
        while engine.has_unfinished:
            ended += len(engine.step().finished)
            if progress is not None:
                progress(len(answers) + ended, prompts * len(ALGORITHMS))
        for number, ((task, _), sequence) in enumerate(zip(problems, running, strict=True)):
            if sequence.error is not None:
                raise RuntimeError(sequence.error)
            request = sequence.request
            assert isinstance(request, DiffusionRequest)
            rounds, length = tuple(request.rounds_per_block), len(sequence.output_ids)
            answers.append(AnswerShape(name, threshold, task, number, request.prompt_tokens, length, rounds))
    return answers


def write_rounds(answers: Iterable[AnswerShape], path: Path) -> None:
    """Write one row per request; the rounds of its blocks in order, separated by blanks."""
    with writing(path) as text:
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(COLUMNS)
        for answer in answers:
            cells = [getattr(answer, name) for name in COLUMNS[:-1]]
            rows.writerow([*cells, " ".join(map(str, answer.rounds))])
