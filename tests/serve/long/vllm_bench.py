"""`vllm bench serve` against both servers, and its report read back by `blis convert`. Not part of the suite.

    python tests/serve/long/vllm_bench.py

vLLM's wheel is of 320 MB and brings a CUDA torch. It is installed into .venv/clients/vllm if it is not there;
a folder of environments named by BLIS_CLIENTS may have one that is smaller, as only its client is used.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from clients import call, environment
from loads import _REQUESTS, _compare, tokenizer_folder
from servers import ENGINE, FLEET, Server, serving

_BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""The sub-command, without importing vLLM's own server as `vllm` does."""


def main() -> None:
    folder = Path(f"/tmp/blis-vllm-{time.monotonic_ns()}")
    tokenizer, python = tokenizer_folder(folder / "tokenizer"), environment("vllm") / "python"

    def benchmark(server: Server, model: str, report: Path) -> Path:
        words = ("--backend", "openai", "--base-url", server.url, "--model", model, "--tokenizer", tokenizer)
        words += ("--dataset-name", "random", "--random-input-len", 60, "--random-output-len", 12)
        words += ("--num-prompts", _REQUESTS, "--request-rate", 8, "--ignore-eos")
        words += (
            "--save-result",
            "--save-detailed",
            "--result-dir",
            folder,
            "--result-filename",
            report.name,
        )
        call(python, "-c", _BENCH_SERVE, *words)
        return report

    with serving(*FLEET, "--tokenizer", str(tokenizer), "--out", str(folder / "out")) as server:
        report = benchmark(server, "qwen3-14b", folder / "fleet.json")
        server.stop()
        _compare("vllm bench serve", report, folder / "out")
    with serving(*ENGINE) as server:
        benchmark(server, "ar", folder / "engine.json")
        assert server.metric("vllm:request_success_total") >= _REQUESTS


if __name__ == "__main__":
    main()
