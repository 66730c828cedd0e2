"""Readers of files and of texts from the command line, given what is almost right."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from random import Random
from shutil import copy, copytree

from drawing import digest, kept
from draws import settings_of
from mutate import mutated
from shown import text_of
from targets import READERS, Reader

from blis_py.errors import InputError
from blis_py.traces.otel import read_spans
from blis_py.traces.prometheus import read_metrics

INPUTS = Path(__file__).parent / "inputs"
READ = {
    **READERS,
    "metrics of a server": Reader("metrics.txt", lambda folder: read_metrics(folder / "metrics.txt")),
    "spans": Reader("spans.json", lambda folder: read_spans(folder / "spans.json")),
    "lines of spans": Reader("spans.jsonl", lambda folder: read_spans(folder / "spans.jsonl")),
}
FORMATS = Path(__file__).parents[2] / "traces" / "formats"


def hostile(reader: str, count: str) -> Iterator[str]:
    """What a reader makes of changed files: what it reads, or how it refuses."""
    named, found = READ[reader.replace("_", " ")], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "s")
        copytree(INPUTS / "scenario", folder)
        copytree(FORMATS, folder / "formats")
        for name in ("metrics.txt", "spans.json", "spans.jsonl"):
            copy(INPUTS / name, folder)
        file = folder / named.file
        good = file.read_bytes()
        for seed in range(int(count)):
            file.write_bytes(mutated(Random(f"{reader} {seed}"), good, file.name))
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    one = digest(text_of(named.read(folder)).replace(place, ""))
            except InputError as error:
                one = f"!{digest(str(error).replace(place, ''))}"
            found.append(one)
    for start in range(0, len(found), 20):
        yield " ".join(found[start : start + 20])


EXAMPLES: dict[str, tuple[str, ...]] = {
    "planning.goal:parse_at_least": (
        "output_tokens_per_s=5000",
        "requests_per_s=3",
        "total_tokens_per_s=1e3",
    ),
    "planning.goal:parse_attainment": ("99%", "0.95", "critical=99% batch=0.5", "critical=0.9,standard=95%"),
    "planning.prices:parse_prices": ("h100=2.5", "h200=3", "b200=1e1", "a100=0"),
    "planning.axes:parse_axis": (
        "rate=10:100:10",
        "scheduler=fcfs,sjf",
        "tp=1,2,4",
        "rate=1,2.5",
        "rate=5:1:2",
    ),
    "metrics.fitness:parse_weights": ("throughput:0.5,p99_ttft:0.5", "mean_e2e:1", "p99_e2e:2,throughput:0"),
    "metrics.slo:parse_goodput": ("ttft:500ms", "tpot:50", "e2e:2s", "itl:30000us", "ttft:0.5s"),
    "metrics.slo:parse_slos": ("ttft.p99=500ms", "critical.e2e.p50=2s", "itl.mean=30", "tpot.max=1ms"),
    "traces.compose:scales": ("1,2", "0.5,2", "3", "1,0"),
}
CHARACTERS = "0123456789.,:=% %-+eEmsuxinfNa_"


def texts(parser: str, count: str) -> Iterator[str]:
    """What a parser of a flag's text makes of texts that are changed in one or two places."""
    module, _, name = parser.partition(":")
    parse = getattr(import_module(f"blis_py.{module}"), name)
    takes_list = name in ("parse_at_least", "parse_prices", "parse_goodput", "parse_slos")
    found = []
    for text in (*EXAMPLES[parser], *_changed(parser, int(count))):
        try:
            found.append(
                digest(parse(text.split() if takes_list else text, *([2] if name == "scales" else [])))
            )
        except InputError as error:
            found.append(f"!{digest(str(error))}")
    for start in range(0, len(found), 20):
        yield " ".join(found[start : start + 20])


def _changed(parser: str, count: int) -> Iterator[str]:
    for seed in range(count):
        rng = Random(f"{parser} {seed}")
        text = rng.choice(EXAMPLES[parser])
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(len(text) + 1)
            new = rng.choice(("", rng.choice(CHARACTERS), rng.choice(CHARACTERS) * 2))
            text = text[:place] + new + text[place + rng.randrange(2) :]
        yield text


def written(first: str, count: str) -> Iterator[str]:
    """Requests of random runs in every format that is written, what each loses, and read again."""
    from blis_py.api import build
    from blis_py.planning.longer import repeated, resampled
    from blis_py.traces import read_trace
    from blis_py.traces.compose import distinct_names, merged
    from blis_py.traces.convert import WRITERS, losses

    for seed in range(int(first), int(first) + int(count)):
        rng = Random(f"written {seed}")
        settings = settings_of(rng.choice(("one", "one", "diffusion")), rng)
        (table,) = kept(settings, rng, lambda given, _: iter([build(**given).table]))[-1:]
        other = table.scaled(rng.choice((0.5, 2.0)))
        merged_names = distinct_names(("x/a.csv", "y/a.csv"))
        parts = (table, repeated(table, 3), resampled(table, seed), merged((table, other), merged_names))
        yield f"{seed} {' '.join(map(digest, parts))}"
        with tempfile.TemporaryDirectory() as place:
            for name, writer in WRITERS.items():
                file = Path(place, f"t{writer.suffixes[0]}")
                try:
                    writer.write(table, file)
                    texts = [
                        f.read_text(encoding="utf-8")
                        for f in sorted(Path(place).iterdir())
                        if f.suffix != ".parquet"
                    ]
                    text = digest(texts)
                    yield f"{name} {text} {digest(losses(table, writer))} {digest(read_trace(file))}"
                except InputError as error:
                    yield f"{name} refused: {error}".replace(place, "")
