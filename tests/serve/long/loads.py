"""Load generators that others wrote, and their reports read back by `blis convert`."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from servers import ENGINE, FLEET, ROOT, Server, serving

_REQUESTS = 24
_CLOCK_MS = 50.0
"""Between a client's note of a request and its arrival, on a busy host."""


def tokenizer_folder(folder: Path) -> Path:
    """A tokenizer of bytes, in the layout of a checkpoint, so that nothing is downloaded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: number for number, character in enumerate(alphabet)}
    vocabulary["<end>"] = len(vocabulary)
    own = Tokenizer(models.BPE(vocabulary, []))
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    own.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    own.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", "pad_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    return folder


def _converted(report: Path, to: Path) -> list[dict[str, str]]:
    """Rows of the report as a TraceV2."""
    words = [sys.executable, "-m", "blis_py", "convert", report, to, "--to", "tracev2"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    subprocess.run([str(word) for word in words], check=True, capture_output=True, env=environ)
    with to.open() as rows:
        return list(csv.DictReader(rows))


def _record(out: Path) -> list[dict[str, str]]:
    with (out / "requests.csv").open() as rows:
        return list(csv.DictReader(rows))


def _compare(name: str, report: Path, out: Path) -> None:
    """A report has the counts, tokens and times of the server's record, which has warm-up requests, too."""
    shown = _converted(report, report.with_suffix(".trace.csv"))
    own = sorted(_record(out), key=lambda row: float(row["arrival_s"]))
    assert len(shown) == _REQUESTS, len(shown)
    outputs = sorted(int(row["output_tokens"]) for row in shown)
    served = sorted(int(row["output_tokens"]) for row in own)
    for count in set(outputs):
        assert served.count(count) >= outputs.count(count), (outputs, served)
    sent_s = sorted(int(row["arrival_time_us"]) / 1e6 for row in shown)
    received_s = [float(row["arrival_s"]) for row in own[-len(shown) :]]
    apart_s = [received - sent for received, sent in zip(received_s, sent_s, strict=True)]
    clock_s = median(apart_s)
    off_ms = [abs(one - clock_s) * 1e3 for one in apart_s]
    print(name, f"{len(shown)} requests in its report, {len(own)} in the record;", end=" ")
    print(f"times differ by {median(off_ms):.1f} ms in the median, {max(off_ms):.1f} ms at most")
    assert median(off_ms) < _CLOCK_MS, off_ms


def aiperf() -> None:
    """AIPerf: streamed chat against both servers."""
    from clients import call, environment

    folder = Path(f"/tmp/blis-aiperf-{time.monotonic_ns()}")
    tokenizer, program = tokenizer_folder(folder / "tokenizer"), environment("aiperf") / "aiperf"

    def profile(server: Server, model: str, tokens: int, to: Path) -> Path:
        words = ("--model", model, "--url", server.url, "--endpoint-type", "chat", "--streaming")
        words += ("--tokenizer", tokenizer, "--request-count", _REQUESTS, "--concurrency", 4)
        words += ("--synthetic-input-tokens-mean", 60, "--output-tokens-mean", tokens, "--ui", "none")
        call(program, "profile", *words, "--artifact-dir", to, timeout=240, offline=False)
        return next(to.rglob("profile_export.jsonl"))

    with serving(*FLEET, "--tokenizer", str(tokenizer), "--out", str(folder / "out")) as server:
        report = profile(server, "qwen3-14b", 12, folder / "fleet")
        server.stop()
        _compare("aiperf", report, folder / "out")
    with serving(*ENGINE) as server:
        profile(server, "ar", 8, folder / "engine")
        assert server.metric("vllm:request_success_total") >= _REQUESTS


def guidellm() -> None:
    """GuideLLM: chat against both servers."""
    from clients import call, environment

    folder = Path(f"/tmp/blis-guidellm-{time.monotonic_ns()}")
    tokenizer, program = tokenizer_folder(folder / "tokenizer"), environment("guidellm") / "guidellm"

    def benchmark(server: Server, to: Path) -> Path:
        given = {
            "--backend": f"openai_http,target={server.url}",
            "--profile": "concurrent,streams=4",
            "--constraint": f"max_requests,count={_REQUESTS}",
            "--data": "synthetic_text,prompt_tokens=60,output_tokens=12",
            "--tokenizer": f"huggingface_auto,model={tokenizer}",
            "--output": f"json,path={to}",
        }
        words = [word for name, value in given.items() for word in (name, f"kind={value}")]
        call(program, "run", "--disable-console", *words, timeout=240)
        return to

    with serving(*FLEET, "--tokenizer", str(tokenizer), "--out", str(folder / "out")) as server:
        report = benchmark(server, folder / "report.json")
        server.stop()
        _compare("guidellm", report, folder / "out")
    with serving(*ENGINE) as server:
        benchmark(server, folder / "engine.json")
        assert server.metric("vllm:request_success_total") >= _REQUESTS


CHECKS = {"aiperf": aiperf, "guidellm": guidellm}
