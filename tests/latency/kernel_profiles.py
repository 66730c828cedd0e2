"""A small folder of kernel times with known formulas, for the tests of `kernel-tables`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from pathlib import Path

LAYERS = 32
CHUNKS, PASTS, DECODES, CONTEXTS = (0, 16, 64, 256), (0, 16, 512), (0, 1, 2, 8, 64), (0, 16, 256, 4096)


def qkv_us(tokens: float) -> float:
    return 50 + 0.25 * tokens


def head_us(sequences: float) -> float:
    return 700 + sequences


def attention_us(chunk: float, past: float, decodes: float, context: float) -> float:
    """Bilinear in (chunk, past) and in (decodes, context), so the grid gives it back exactly."""
    return (5 + 0.001 * chunk * past + 0.1 * chunk if chunk else 0.0) + (
        3 + 0.0002 * decodes * context if decodes else 0.0
    )


def write(
    folder: Path,
    model: str = "meta-llama/Llama-3.1-8B",
    too_large: int = 1 << 30,
    mixed_decodes: int = 1 << 30,
    beside: float = 1.0,
) -> Path:
    """The folder; attention over more than `too_large` cached tokens, and that of more than
    `mixed_decodes` decodes in a batch with a chunk, is left out. Decodes beside a chunk cost `beside` times
    as much as by themselves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "meta.yaml").write_text(
        f"model: {model}\ngpu: Testing GPU\nvllm_version: 0.0.0\ntp_degrees: [1]\n"
    )
    sizes = (1, 2, 8, 64, 2048)
    dense = [("qkv_proj", t, qkv_us(t)) for t in sizes]
    dense += [(name, t, 1.0) for name in ("layernorm", "embedding", "final_layernorm") for t in sizes]
    _table(folder / "dense.csv", "layer,tokens,time_us", dense)
    rows = [("lm_head", s, head_us(s)) for s in (1, 8, 64)]
    _table(folder / "per_sequence.csv", "layer,sequences,time_us", rows)
    points = [
        (*point, attention_us(*point[:2], 0, 0) + _decodes_us(*point) * (beside if point[0] else 1))
        for point in product(CHUNKS, PASTS, DECODES, CONTEXTS)
        if (point[0] or point[2])
        and (point[0] or not point[1])
        and (bool(point[2]) == bool(point[3]))
        and point[1] + point[2] * point[3] <= too_large
        and not (point[0] and point[2] > mixed_decodes)
    ]
    _table(folder / "attention.csv", "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us", points)
    return folder


def _decodes_us(_chunk: float, _past: float, decodes: float, context: float) -> float:
    return attention_us(0, 0, decodes, context)


def _table(path: Path, header: str, rows: Iterable[tuple[object, ...]]) -> None:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
