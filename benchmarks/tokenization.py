"""Time that a tokenizer takes for a token of a prompt.

    python benchmarks/tokenization.py [--out benchmarks/results/tokenization.json]

Servers split the text of a prompt into tokens by Hugging Face's tokenizers, one prompt on one thread: here by
byte-level BPE of 100,000 tokens, learned on the source text of installed packages, with the expression for
words of gpt-oss. Prompts are what benchmark clients send, texts of random tokens (vLLM's `random` data set:
consecutive tokens from a random one), and source text. Each is split once, as words seen before are cached;
of many prompts, the lower quartile says what an undisturbed machine takes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import tokenizers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY, CORPUS_CHARS = 100_000, 60_000_000
LENGTHS, PROMPTS = (1024, 8192, 32768), 40
CHARS_OF_A_TOKEN = 4
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_ENDING, _BEFORE = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", r"[^\r\n\p{L}\p{N}]?"
WORDS = "|".join(
    (
        rf"{_BEFORE}[{_UPPER}]*[{_LOWER}]+{_ENDING}",
        rf"{_BEFORE}[{_UPPER}]+[{_LOWER}]*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
"""The expression of OpenAI's `o200k` vocabularies."""


def corpus(rng: random.Random) -> str:
    """Source text of installed packages."""
    files = sorted(Path(np.__file__).parents[1].rglob("*.py"))
    rng.shuffle(files)
    parts, chars = [], 0
    for file in files:
        text = file.read_text(encoding="utf-8", errors="ignore")
        parts.append(text)
        chars += len(text)
        if chars > CORPUS_CHARS:
            break
    return "\n".join(parts)


def trained_on(text: str) -> Tokenizer:
    """Byte-level BPE."""
    found = Tokenizer(models.BPE(ignore_merges=True))
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    found.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    found.train_from_iterator(text.split("\n\n"), trainer)
    return found


def random_prompts(tokenizer: Tokenizer, length: int, rng: random.Random) -> Iterator[str]:
    """Consecutive tokens from a random one, as text."""
    size = tokenizer.get_vocab_size()
    while True:
        first = rng.randrange(size)
        yield tokenizer.decode([(first + i) % size for i in range(length)])


def source_prompts(text: str, length: int, rng: random.Random) -> Iterator[str]:
    chars = CHARS_OF_A_TOKEN * length
    while True:
        first = rng.randrange(len(text) - chars)
        yield text[first : first + chars]


def us_of_a_token(tokenizer: Tokenizer, prompts: Iterator[str]) -> float:
    """Lower quartile over the prompts."""
    found = []
    for _, prompt in zip(range(PROMPTS), prompts, strict=False):
        begin = time.perf_counter()
        tokens = len(tokenizer.encode(prompt).ids)
        found.append((time.perf_counter() - begin) / tokens * 1e6)
    return float(np.percentile(found, 25))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng = random.Random(1)
    text = corpus(rng)
    tokenizer = trained_on(text)
    kinds: dict[str, Callable[[int], Iterator[str]]] = {
        "random tokens": lambda length: random_prompts(tokenizer, length, rng),
        "source text": lambda length: source_prompts(text, length, rng),
    }
    us: dict[str, dict[int, float]] = {}
    for kind, prompts in kinds.items():
        us[kind] = {length: round(us_of_a_token(tokenizer, prompts(length)), 2) for length in LENGTHS}
        print(f"{kind}: {', '.join(f'{n:,} tokens {each} us a token' for n, each in us[kind].items())}")
    if options.out is not None:
        setting = {"machine": platform.machine(), "tokenizers": tokenizers.__version__}
        options.out.write_text(json.dumps({**setting, "us": us}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
