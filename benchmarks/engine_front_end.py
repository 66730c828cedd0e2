"""What the server's threads cost the engine's step: time between tokens of many streams, in pairs.

    python benchmarks/engine_front_end.py [--streams 256] [--tokens 100] [--step-ms 20] [--pairs 5]

The engine's server stands in front of a model that sleeps instead of a GPU at work. The thread that steps and
the one that writes responses share an interpreter: whichever waits gets it after the switch interval, 5 ms in
Python and 0.1 ms in the server. Each pair serves the same streams under either, in turns of which is first;
prints JSON with the mean time between tokens in ms of every pair. Another process is the client. Needs torch
on a CPU, no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from engine_host_overhead import NoModel, Pieces, no_sampling

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import engine.cli.serving.backend as served
import engine.sampler
from blis_py.serve.server import Service, run
from blis_py.serve.settings import ServeSettings
from engine.build import build_engine
from engine.cli.serving.checkpoint import CheckpointWords
from engine.clock import WallClock
from engine.config import EngineConfig
from engine.engine import LLMEngine

PYTHON_S, SERVER_S = 0.005, 0.0001
"""Switch intervals: Python's, and the server's."""
_PROMPT_TOKENS = 20
_LINE = 1 << 20


class SleepingModel(NoModel):
    """A model whose step takes a time in which the thread needs no interpreter."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s

    def __call__(self, input_ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        time.sleep(self._step_s)
        return input_ids


def serve(streams: int, step_s: float, switch_s: float) -> None:
    """Serve on a free port, which is printed, until the process is ended."""
    torch.set_num_threads(1)
    engine.sampler.sample = no_sampling  # type: ignore[attr-defined]
    served._SWITCH_S = switch_s

    def build() -> LLMEngine:
        config = EngineConfig(
            model="none",
            device="cpu",
            max_num_seqs=streams,
            max_num_batched_tokens=max(_PROMPT_TOKENS * streams, 1024),
            max_model_len=512,
            num_kv_blocks=32 * streams,
            block_size=16,
            async_scheduling=True,
        )
        return build_engine(config, model=SleepingModel(step_s), tokenizer=Pieces(), clock=WallClock())

    service = Service({"": served.EngineBackend(build, ("m",), CheckpointWords())}, ServeSettings(port=0))
    print(service.port, flush=True)
    run([service])


async def stream(port: int, index: int, tokens: int) -> list[float]:
    """Times of a stream's events."""
    prompt = [(index + at) % 100 for at in range(_PROMPT_TOKENS)]
    wanted = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    body = json.dumps(wanted).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=_LINE)
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    times: list[float] = []
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    writer.close()
    if len(times) < tokens:
        raise RuntimeError(f"{len(times)} events of {tokens}")
    return times


async def gap_ms(port: int, streams: int, tokens: int) -> float:
    """Time between tokens, from the first one of any stream to the last one of all."""
    await stream(port, 0, 2)
    times = await asyncio.gather(*(stream(port, index, tokens) for index in range(streams)))
    took_s = max(one[-1] for one in times) - min(one[0] for one in times)
    return took_s / (tokens - 1) * 1e3


def measure(streams: int, tokens: int, step_s: float, switch_s: float) -> float:
    """The time between tokens, in ms, of a server in a process of its own."""
    words = [sys.executable, __file__, "--serve", str(switch_s)]
    words += ["--streams", str(streams), "--step-ms", str(step_s * 1e3)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        return asyncio.run(_when_ready(process, port, streams, tokens))
    finally:
        process.kill()
        process.wait()


async def _when_ready(process: subprocess.Popen[str], port: int, streams: int, tokens: int) -> float:
    while process.poll() is None:
        try:
            await stream(port, 0, 1)
            return await gap_ms(port, streams, tokens)
        except (OSError, RuntimeError):  # it is starting
            await asyncio.sleep(0.2)
    raise RuntimeError(f"the server ended with {process.returncode}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=100, help="of each stream")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--serve", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes = options.streams, options.step_ms / 1e3
    if options.serve is not None:
        serve(*sizes, options.serve)
        return 0
    pairs = []
    for number in range(options.pairs):
        order = (PYTHON_S, SERVER_S) if number % 2 == 0 else (SERVER_S, PYTHON_S)
        gaps = {each: measure(options.streams, options.tokens, sizes[1], each) for each in order}
        pairs.append({"python_ms": gaps[PYTHON_S], "server_ms": gaps[SERVER_S]})
        pairs[-1]["change"] = gaps[SERVER_S] / gaps[PYTHON_S] - 1
    rounded = [{name: round(value, 3) for name, value in pair.items()} for pair in pairs]
    median = round(statistics.median(pair["change"] for pair in pairs), 3)
    shown = {name: value for name, value in vars(options).items() if name != "serve"}
    print(json.dumps({**shown, "pairs": rounded, "median_change": median}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
